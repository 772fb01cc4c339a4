// Runs a model: run MODEL [SIZE [DEVICE]]. Sizes that may vary are SIZE, or 4. Inputs count up from -1 in steps of 1/8; integers are 0.
//
//     cargo build --release -p kiln-capi
//     cc crates/capi/examples/run.c -Icrates/capi/include -Ltarget/release -lkiln -Wl,-rpath,$PWD/target/release -o run
//     ./run graphs/softmax.kiln
#include <kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Ends the program with the message of a call that failed.
static void check(kiln_status status, char **error) {
    if (status == KILN_OK) return;
    fprintf(stderr, "error: %s\n", *error);
    kiln_string_free(*error);
    exit(1);
}

static size_t elements(kiln_type type) {
    size_t n = 1;
    for (size_t axis = 0; axis < type.rank; axis++) n *= (size_t)type.shape[axis];
    return n;
}

static void *allocate(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) exit(1);
    return memory;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: run MODEL [SIZE [DEVICE]]\n");
        return 2;
    }
    int64_t size = argc > 2 ? atoll(argv[2]) : 4;
    char device[64] = "device=cpu";
    if (argc > 3) snprintf(device, sizeof device, "device=%s", argv[3]);
    const char *options[] = {device, NULL};
    char *error = NULL;

    kiln_model *model;
    check(kiln_model_open(argv[1], options, &model, &error), &error);
    size_t n = kiln_model_input_count(model), m = kiln_model_output_count(model);

    // The types of this program's inputs: the model's, with a size where one may vary.
    kiln_type *types = allocate(n * sizeof *types);
    for (size_t i = 0; i < n; i++) {
        types[i] = kiln_model_input_type(model, i);
        int64_t *shape = allocate(types[i].rank * sizeof *shape);
        for (size_t axis = 0; axis < types[i].rank; axis++)
            shape[axis] = types[i].shape[axis] < 0 ? size : types[i].shape[axis];
        types[i].shape = shape;
        printf("input %s\n", kiln_model_input_name(model, i));
    }
    kiln_session *session;
    check(kiln_session_open(model, types, n, &session, &error), &error);

    const void **inputs = allocate(n * sizeof *inputs);
    for (size_t i = 0; i < n; i++) {
        size_t count = elements(types[i]);
        float *memory = allocate(count * kiln_dtype_size(types[i].dtype));
        for (size_t at = 0; types[i].dtype == KILN_F32 && at < count; at++) memory[at] = (float)at / 8 - 1;
        inputs[i] = memory;
    }
    void **outputs = allocate(m * sizeof *outputs);
    for (size_t i = 0; i < m; i++) {
        kiln_type type = kiln_session_output_type(session, i);
        outputs[i] = allocate(elements(type) * kiln_dtype_size(type.dtype));
    }
    check(kiln_run(session, inputs, n, outputs, m, &error), &error);

    for (size_t i = 0; i < m; i++) {
        kiln_type type = kiln_session_output_type(session, i);
        size_t count = elements(type);
        printf("output %zu: %zu elements\n", i, count);
        for (size_t at = 0; type.dtype == KILN_F32 && at < count && at < 16; at++)
            printf("%.9g\n", ((float *)outputs[i])[at]);
        free(outputs[i]);
    }
    for (size_t i = 0; i < n; i++) {
        free((void *)inputs[i]);
        free((void *)types[i].shape);
    }
    free(inputs), free(outputs), free(types);
    kiln_session_close(session);
    kiln_model_close(model);
    return 0;
}
