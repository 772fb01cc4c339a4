// kiln.h: the C interface of Kiln, a compiler of exported PyTorch models. Link with -lkiln. Made by cbindgen: do not edit.
//
// A model is a file that was opened for a device. A session is a model compiled for given sizes of its inputs; it runs in the caller's
// memory. crates/capi/examples/run.c is a whole program.
//
// Errors. A function that can fail gives a kiln_status, and sets `error` to a message in UTF-8 that ends with what to do. The message is the
// caller's: kiln_string_free frees it.
//
// Ownership. Handles are freed by their close functions, in any order. No function keeps an address of the caller after it returns, but
// kiln_run_cuda, whose run may go on. NULL in place of a handle is an error, or no such thing; other wrong addresses are not noticed.
//
// Threads. Any function may be called from any thread, and threads may share models and sessions: runs of one session wait for each other,
// and so do all runs of a model that keeps state. Only closing a handle must not overlap another call with it.
//
// Sizes are in elements, memory in bytes.

#ifndef KILN_H
#define KILN_H

#include <stddef.h>
#include <stdint.h>

// What a call came to.
typedef enum kiln_status {
  // It is done.
  KILN_OK = 0,
  // The work failed: a file cannot be read, or a run went wrong.
  KILN_FAILED = 1,
  // The call itself is wrong.
  KILN_USAGE = 2,
  // The inputs do not fit the model: their number, element types or sizes.
  KILN_INPUTS = 3,
  // The model has a part that Kiln does not compile.
  KILN_UNSUPPORTED = 4,
  // A device is missing, out of memory, or fails.
  KILN_DEVICE = 5,
  // A defect of Kiln. Please report it with the message. The handle must only be closed.
  KILN_DEFECT = 6,
} kiln_status;

// A model on a device. Threads may share it.
typedef struct kiln_model kiln_model;

// A model compiled for given sizes of its inputs. Threads may share it: their runs wait for each other.
typedef struct kiln_session kiln_session;

// Element types: one of the KILN_ constants below. 0 is none of them.
typedef int32_t kiln_dtype;

// The type of a tensor, which is dense and row-major.
typedef struct kiln_type {
  // Type of the elements.
  kiln_dtype dtype;
  // Number of dimensions; 0 for one element.
  size_t rank;
  // The sizes of its dimensions in elements, outermost first: `rank` numbers. In a type that a function gives they belong to the handle
  // that was asked and live as long as it. -1 is a size that varies from call to call.
  const int64_t *shape;
} kiln_type;

// 64-bit float.
#define KILN_F64 1

// 32-bit float.
#define KILN_F32 2

// 16-bit float of IEEE 754.
#define KILN_F16 3

// 16-bit float with the exponent of a 32-bit float.
#define KILN_BF16 4

// 8-bit float, PyTorch's float8_e4m3fn.
#define KILN_F8E4M3 5

// 8-bit float, PyTorch's float8_e5m2.
#define KILN_F8E5M2 6

// 64-bit signed integer.
#define KILN_I64 7

// 32-bit signed integer.
#define KILN_I32 8

// 16-bit signed integer.
#define KILN_I16 9

// 8-bit signed integer.
#define KILN_I8 10

// 8-bit unsigned integer.
#define KILN_U8 11

// One byte that is 0 or 1.
#define KILN_BOOL 12

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, as "0.1.0". Never freed.
const char *kiln_version(void);

// Bytes of an element; 0 if there is no such type.
size_t kiln_dtype_size(kiln_dtype dtype);

// Frees a message that a call set. NULL is allowed.
void kiln_string_free(char *text);

// Opens a file: a program of torch.export.save (.pt2), an artifact of `kiln compile`, or a text graph. Nothing is compiled yet.
//
// path: the file's name, in UTF-8.
// options: texts of the form "name=value", ended by NULL; NULL for none.
//     "device=cpu" (the default), "device=cuda:0";
//     "numerics=exact", "numerics=torch", "numerics=fast": how results may differ from the model as written; the default is what an artifact
//     was compiled with, else torch;
//     "threads=4": threads of the CPU; the default is all cores;
//     "machine_code=1": runs the machine code of an artifact as it is. Nothing can check it: only for files whose writer you trust.
// model: is set to the model, which kiln_model_close frees; to NULL on failure.
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_model_open(const char *path,
                                 const char *const *options,
                                 struct kiln_model **model,
                                 char **error);

// Frees a model. Its sessions keep what they need, and are closed on their own. No other call may use the model meanwhile. NULL is allowed.
void kiln_model_close(struct kiln_model *model);

// Number of tensors that a run takes. Other arguments of the model, which were fixed when it was exported, do not count.
size_t kiln_model_input_count(const struct kiln_model *model);

// Number of tensors that a run gives. Numbers that follow from sizes, and None, do not count.
size_t kiln_model_output_count(const struct kiln_model *model);

// The name of an input, which lives as long as the model: of a .pt2 as in its source, else input0, input1, and so on. NULL if there is no
// such input.
const char *kiln_model_input_name(const struct kiln_model *model,
                                  size_t index);

// The type of an input; a size that may vary is -1. Its dtype is 0 if there is no such input.
struct kiln_type kiln_model_input_type(const struct kiln_model *model, size_t index);

// The type of an output; a size that varies is -1. Its dtype is 0 if there is no such output.
struct kiln_type kiln_model_output_type(const struct kiln_model *model, size_t index);

// Compiles a model for inputs of these types, which takes from milliseconds to seconds. A model keeps its last 64 sessions, so that asking
// again for the same sizes takes microseconds. On the CPU they share the model's weights; on a GPU each has a copy of its own.
//
// inputs, count: the type of every input, in order. NULL and 0 for the sizes at export; for models without sizes that vary.
// session: is set to the session, which kiln_session_close frees; to NULL on failure.
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_session_open(const struct kiln_model *model,
                                   const struct kiln_type *inputs,
                                   size_t count,
                                   struct kiln_session **session,
                                   char **error);

// Frees a session, after its runs are done: on a GPU wait for the stream first. NULL is allowed.
void kiln_session_close(struct kiln_session *session);

// The type of an input, all sizes known. Its dtype is 0 if there is no such input.
struct kiln_type kiln_session_input_type(const struct kiln_session *session, size_t index);

// The type of an output, all sizes known. Its dtype is 0 if there is no such output.
struct kiln_type kiln_session_output_type(const struct kiln_session *session, size_t index);

// Runs the model on memory of the host, and waits until it is done. On the CPU inputs are read and outputs written in place. On a GPU they
// are copied to it and back.
//
// inputs: an address for each input, in order; dense and row-major, of the session's types. Bools are 0 or 1.
// outputs: an address for each output, in order, with room for its elements. No output overlaps an input or another output. The model's
//     own state is changed as well, if it has any, which stays on the device; kiln_model_reset undoes that.
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds. After a failure outputs may
//     be written in part.
enum kiln_status kiln_run(const struct kiln_session *session,
                          const void *const *inputs,
                          size_t input_count,
                          void *const *outputs,
                          size_t output_count,
                          char **error);

// Enqueues a run on memory of the session's GPU, and does not wait for it.
//
// inputs, outputs: as for kiln_run, in memory of the GPU, which stays allocated until the run is done.
// stream: a CUstream or cudaStream_t of the GPU's primary context, which the runtime of CUDA uses; NULL for the default stream. The next
//     run of a model with state waits for this one if it is on another stream.
// error: as for kiln_run. What goes wrong on the GPU is found later: kiln_session_check tells.
enum kiln_status kiln_run_cuda(const struct kiln_session *session,
                               const void *const *inputs,
                               size_t input_count,
                               void *const *outputs,
                               size_t output_count,
                               void *stream,
                               char **error);

// Waits for all runs of a session. Fails if the GPU did, or if a run found an index out of range in its inputs.
//
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_session_check(const struct kiln_session *session, char **error);

// Number of states: buffers that runs change, and that later runs read, such as caches.
size_t kiln_model_state_count(const struct kiln_model *model);

// The name of a state as in the model's source, which lives as long as the model. NULL if there is no such state.
const char *kiln_model_state_name(const struct kiln_model *model, size_t index);

// The type of a state. Its dtype is 0 if there is no such state.
struct kiln_type kiln_model_state_type(const struct kiln_model *model, size_t index);

// Copies a state to memory of the host, as the last run has left it; before the first run it has the values of the file. Waits for runs.
//
// index: a number below kiln_model_state_count.
// to: room for its elements, which become dense and row-major.
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_model_read_state(const struct kiln_model *model,
                                       size_t index,
                                       void *to,
                                       char **error);

// Sets a state, which the next run reads. Waits for runs.
//
// index: a number below kiln_model_state_count.
// from: its elements in memory of the host, dense and row-major. Bools are 0 or 1.
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_model_write_state(const struct kiln_model *model, size_t index, const void *from, char **error);

// Gives all states the values that the file has. Waits for runs.
//
// error: if it is not NULL, is set to a message that kiln_string_free frees, or to NULL if the call succeeds.
enum kiln_status kiln_model_reset(const struct kiln_model *model, char **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KILN_H */
