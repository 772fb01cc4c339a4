# Sourced by the other scripts: progress and error messages.

have() { printf '  ok    %s\n' "$1"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$1" >&2; exit 1; }

# 75 -> "1 min 15 s"
duration() { if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# Total size of folders, which need not exist: "1.2G"
size_of() { du -shc "$@" 2>/dev/null | tail -1 | cut -f1; }

# during TEXT COMMAND…: runs the command. On a terminal, one line shows the seconds passed and the last line of the command's output;
# elsewhere, a line is printed at the start and twice a minute. If the command fails, the end of its output is shown.
during() {
    local text=$1 log pid status=0 start=$SECONDS
    shift
    log=$(mktemp)
    printf '  ....  %s\n' "$text"
    "$@" >"$log" 2>&1 &
    pid=$!
    # A background command does not receive Ctrl-C.
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        local passed=$((SECONDS - start)) last
        if [ -t 1 ]; then
            last=$(tail -c 400 "$log" | tr '\r' '\n' | grep -v '^\s*$' | tail -1 | cut -c1-60 || true)
            printf '\r\033[K        %s  %s' "$(duration $passed)" "$last"
        elif [ $((passed % 30)) = 0 ]; then
            printf '        %s: %s\n' "$text" "$(duration $passed)"
        fi
    done
    [ -t 1 ] && printf '\r\033[K'
    wait "$pid" || status=$?
    trap - INT TERM
    if [ "$status" != 0 ]; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "failed: $text (see above)"
    fi
    rm -f "$log"
    have "$text ($(duration $((SECONDS - start))))"
}
