// What the C interface promises, call by call: calls SOFTMAX DYNAMIC COUNTER. The files are those that main.rs makes.
#include <kiln.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                             \
    do {                                                         \
        if (!(what)) {                                           \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);   \
            exit(1);                                             \
        }                                                        \
    } while (0)

// The call failed with this status, and its message has these words.
static void fails(kiln_status status, char **error, kiln_status want, const char *words) {
    if (status != want || !*error || !strstr(*error, words)) {
        fprintf(stderr, "status %d for %d: %s\nwithout: %s\n", status, want, *error ? *error : "(no message)", words);
        exit(1);
    }
    kiln_string_free(*error);
}

static kiln_model *opened(const char *path) {
    char *error = (char *)1;
    kiln_model *model = NULL;
    kiln_status status = kiln_model_open(path, NULL, &model, &error);
    if (status != KILN_OK) fprintf(stderr, "%s\n", error);
    EXPECT(status == KILN_OK && model && !error);
    return model;
}

static void wrong_calls(const char *path) {
    char *error = NULL;
    kiln_model *model = (kiln_model *)1;
    fails(kiln_model_open("no-such-file.pt2", NULL, &model, &error), &error, KILN_FAILED, "check the path");
    EXPECT(!model);
    fails(kiln_model_open(NULL, NULL, &model, &error), &error, KILN_USAGE, "path is NULL");
    fails(kiln_model_open("\xff", NULL, &model, &error), &error, KILN_USAGE, "UTF-8");
    fails(kiln_model_open(path, NULL, NULL, &error), &error, KILN_USAGE, "model is NULL");
    const char *tpu[] = {"device=tpu", NULL}, *speed[] = {"speed=9", NULL}, *loose[] = {"numerics=loose", NULL}, *none[] = {"threads=0", NULL};
    fails(kiln_model_open(path, tpu, &model, &error), &error, KILN_USAGE, "give cpu, cuda or cuda:0");
    fails(kiln_model_open(path, speed, &model, &error), &error, KILN_USAGE, "speed=9");
    fails(kiln_model_open(path, loose, &model, &error), &error, KILN_USAGE, "exact, torch or fast");
    fails(kiln_model_open(path, none, &model, &error), &error, KILN_USAGE, "threads=0");
    // A caller may do without messages.
    EXPECT(kiln_model_open("no-such-file.pt2", NULL, &model, NULL) == KILN_FAILED);

    EXPECT(kiln_model_input_count(NULL) == 0 && !kiln_model_input_name(NULL, 0) && !kiln_model_input_type(NULL, 0).dtype);
    kiln_session *session = NULL;
    fails(kiln_session_open(NULL, NULL, 0, &session, &error), &error, KILN_USAGE, "model is NULL");
    fails(kiln_run(NULL, NULL, 0, NULL, 0, &error), &error, KILN_USAGE, "session is NULL");
    fails(kiln_session_check(NULL, &error), &error, KILN_USAGE, "session is NULL");
    fails(kiln_model_reset(NULL, &error), &error, KILN_USAGE, "model is NULL");
    EXPECT(kiln_model_state_count(NULL) == 0 && !kiln_model_state_name(NULL, 0) && !kiln_model_state_type(NULL, 0).dtype);
    kiln_model_close(NULL);
    kiln_session_close(NULL);
    kiln_string_free(NULL);
}

// y = 2 * x, x: f32[n, 3] with n from 2 on.
static void sizes_that_vary(const char *path) {
    char *error = NULL;
    kiln_model *model = opened(path);
    EXPECT(kiln_model_input_count(model) == 1 && kiln_model_output_count(model) == 1);
    EXPECT(!strcmp(kiln_model_input_name(model, 0), "x") && !kiln_model_input_name(model, 1));
    kiln_type type = kiln_model_input_type(model, 0);
    EXPECT(type.dtype == KILN_F32 && type.rank == 2 && type.shape[0] == -1 && type.shape[1] == 3);
    EXPECT(kiln_model_output_type(model, 0).shape[0] == -1 && kiln_model_output_type(model, 1).dtype == 0);

    kiln_session *sessions[2];
    for (int i = 0; i < 2; i++) {
        int64_t shape[] = {i ? 5 : 2, 3};
        kiln_type given = {KILN_F32, 2, shape};
        EXPECT(kiln_session_open(model, &given, 1, &sessions[i], &error) == KILN_OK);
        EXPECT(kiln_session_input_type(sessions[i], 0).shape[0] == shape[0]);
        EXPECT(kiln_session_output_type(sessions[i], 0).shape[0] == shape[0] && kiln_session_output_type(sessions[i], 1).dtype == 0);
    }
    kiln_session *session = (kiln_session *)1;
    int64_t narrow[] = {2, 4}, one[] = {6}, less[] = {-1, 3}, huge[] = {INT64_MAX, INT64_MAX};
    kiln_type wrong = {KILN_F32, 2, narrow};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_INPUTS, "input `x`");
    EXPECT(!session);
    wrong = (kiln_type){KILN_F32, 1, one};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_INPUTS, "rank");
    wrong = (kiln_type){KILN_I64, 2, narrow};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_INPUTS, "i64");
    wrong = (kiln_type){99, 2, narrow};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_USAGE, "dtype 99");
    wrong = (kiln_type){KILN_F32, 2, less};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_USAGE, "size of -1");
    wrong = (kiln_type){KILN_F32, 2, huge};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_USAGE, "larger than any memory");
    wrong = (kiln_type){KILN_F32, 2, NULL};
    fails(kiln_session_open(model, &wrong, 1, &session, &error), &error, KILN_USAGE, "NULL");

    // Sessions outlive their model.
    kiln_model_close(model);
    for (int i = 0; i < 2; i++) {
        float x[15], y[15] = {0};
        for (int at = 0; at < 15; at++) x[at] = (float)at;
        const void *inputs[] = {x};
        void *outputs[] = {y};
        EXPECT(kiln_run(sessions[i], inputs, 1, outputs, 1, &error) == KILN_OK && !error);
        for (int at = 0; at < 15; at++) EXPECT(y[at] == (at < (i ? 15 : 6) ? 2 * x[at] : 0));
        fails(kiln_run(sessions[i], inputs, 0, outputs, 1, &error), &error, KILN_USAGE, "0 inputs");
        fails(kiln_run(sessions[i], inputs, 1, outputs, 2, &error), &error, KILN_USAGE, "2 outputs");
        outputs[0] = NULL;
        fails(kiln_run(sessions[i], inputs, 1, outputs, 1, &error), &error, KILN_USAGE, "output 0 is NULL");
        outputs[0] = y;
        fails(kiln_run_cuda(sessions[i], inputs, 1, outputs, 1, NULL, &error), &error, KILN_USAGE, "call kiln_run");
        EXPECT(kiln_session_check(sessions[i], &error) == KILN_OK);
        kiln_session_close(sessions[i]);
    }
}

// A buffer to which every run adds x, and which it gives; it begins as 10, 20.
static void state_that_stays(const char *path) {
    char *error = NULL;
    kiln_model *model = opened(path);
    kiln_session *session = NULL;
    EXPECT(kiln_model_input_count(model) == 1);
    EXPECT(kiln_session_open(model, NULL, 0, &session, &error) == KILN_OK);
    for (int round = 0; round < 2; round++) {
        for (int step = 1; step <= 3; step++) {
            float x[] = {1, 2}, y[] = {0, 0};
            const void *inputs[] = {x};
            void *outputs[] = {y};
            EXPECT(kiln_run(session, inputs, 1, outputs, 1, &error) == KILN_OK);
            EXPECT(y[0] == 10 + step && y[1] == 20 + 2 * step);
        }
        EXPECT(kiln_model_reset(model, &error) == KILN_OK && !error);
    }

    EXPECT(kiln_model_state_count(model) == 1 && !strcmp(kiln_model_state_name(model, 0), "sum"));
    kiln_type type = kiln_model_state_type(model, 0);
    EXPECT(type.dtype == KILN_F32 && type.rank == 1 && type.shape[0] == 2);
    EXPECT(!kiln_model_state_name(model, 1) && !kiln_model_state_type(model, 1).dtype);
    float sum[] = {0, 0}, x[] = {1, 2}, y[] = {0, 0};
    const void *inputs[] = {x};
    void *outputs[] = {y};
    EXPECT(kiln_model_read_state(model, 0, sum, &error) == KILN_OK && sum[0] == 10 && sum[1] == 20);
    sum[0] = 5;
    EXPECT(kiln_model_write_state(model, 0, sum, &error) == KILN_OK);
    EXPECT(kiln_run(session, inputs, 1, outputs, 1, &error) == KILN_OK && y[0] == 6 && y[1] == 22);
    EXPECT(kiln_model_read_state(model, 0, sum, &error) == KILN_OK && sum[0] == 6 && sum[1] == 22);
    fails(kiln_model_read_state(model, 1, sum, &error), &error, KILN_USAGE, "no state 1");
    fails(kiln_model_read_state(model, 0, NULL, &error), &error, KILN_USAGE, "to is NULL");
    fails(kiln_model_write_state(model, 0, NULL, &error), &error, KILN_USAGE, "from is NULL");
    fails(kiln_run_cuda(session, inputs, 1, outputs, 1, NULL, &error), &error, KILN_USAGE, "call kiln_run");
    kiln_session_close(session);
    kiln_model_close(model);
}

struct shared {
    kiln_session *session;
    int wrong;
};
static void *many_runs(void *argument) {
    struct shared *shared = argument;
    kiln_type type = kiln_session_input_type(shared->session, 0);
    size_t count = (size_t)(type.shape[0] * type.shape[1]);
    float *x = calloc(count, sizeof *x), *y = calloc(count, sizeof *y);
    const void *inputs[] = {x};
    void *outputs[] = {y};
    for (int i = 0; i < 20; i++) {
        memset(y, 0, count * sizeof *y);
        if (kiln_run(shared->session, inputs, 1, outputs, 1, NULL) != KILN_OK) shared->wrong++;
        for (size_t at = 0; at < count; at++) shared->wrong += fabsf(y[at] * (float)type.shape[1] - 1) > 1e-5f;
    }
    free(x), free(y);
    return NULL;
}
// Softmax of zeros, from two threads.
static void threads(const char *path) {
    kiln_model *model = opened(path);
    struct shared all[2] = {{NULL, 0}, {NULL, 0}};
    EXPECT(kiln_session_open(model, NULL, 0, &all[0].session, NULL) == KILN_OK);
    all[1].session = all[0].session;
    pthread_t other[2];
    for (int i = 0; i < 2; i++) EXPECT(!pthread_create(&other[i], NULL, many_runs, &all[i]));
    for (int i = 0; i < 2; i++) EXPECT(!pthread_join(other[i], NULL) && !all[i].wrong);
    kiln_session_close(all[0].session);
    kiln_model_close(model);
}

int main(int argc, char **argv) {
    EXPECT(argc == 4);
    EXPECT(strchr(kiln_version(), '.') && kiln_dtype_size(KILN_BF16) == 2 && kiln_dtype_size(KILN_BOOL) == 1 && !kiln_dtype_size(0));
    wrong_calls(argv[1]);
    sizes_that_vary(argv[2]);
    state_that_stays(argv[3]);
    threads(argv[1]);
    puts("done");
    return 0;
}
