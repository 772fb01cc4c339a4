// Shared declarations of the C++ shim: data structures behind its handles. src/ffi.rs mirrors the extern "C" functions of its files.
//
// load.cpp        archive -> frozen, inlined, cleaned TorchScript graph
// specialise.cpp  runs that graph once on example inputs -> flat list of typed calls
// views.cpp       one call per view; operators that read strides (part of specialisation)
// reads.cpp       refuses data-dependent numbers and shapes (part of specialisation)
// mutation.cpp    in-place operators -> calls without side effects (part of specialisation)
// dump.cpp        calls, values, problems -> JSON
// execute.cpp     whole modules as the reference; single operators by name
//
// No C++ exception crosses an extern "C" function: failures are JSON texts, {"errors": [{message, source, module, help}]}.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace kiln {

// Something in the model that import refuses. `source` has the format of `source_of`; empty if unknown.
struct Problem {
  std::string message, source, module, help;
};

// Thrown inside the shim; carries all problems found so far.
struct Failure : std::exception {
  std::vector<Problem> problems;
  explicit Failure(std::vector<Problem> p) : problems(std::move(p)) {}
  explicit Failure(std::string message, std::string help = "") : problems{{std::move(message), "", "", std::move(help)}} {}
  const char* what() const noexcept override { return problems.empty() ? "unknown" : problems[0].message.c_str(); }
};

// An argument of a call: the value with this id, a list of arguments, or a plain constant.
struct Arg {
  c10::IValue plain;
  int id = -1;
  bool list = false;
  std::vector<Arg> items;
  static Arg value(int id) { Arg a; a.id = id; return a; }
  static Arg constant(c10::IValue v) { Arg a; a.plain = std::move(v); return a; }
};

// One operator call. Results that are lists are flattened into `outs`.
struct Call {
  std::string name, overload;
  std::vector<Arg> args;
  std::vector<int> outs;
  std::string source, module;
};

// A tensor value: its type in the example run, and its contents if they do not depend on the inputs.
struct ValueInfo {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  at::Tensor constant;     // a weight or literal: always available
  at::Tensor folded;       // computed from constants alone: the caller may use it instead of the call
};

struct Input {
  std::string name;
  int id = -1;             // value id; -1 for a scalar, whose example value is baked in
  c10::IValue scalar;
};

struct Specialised {
  std::vector<Input> inputs;
  std::vector<Call> calls;
  std::vector<ValueInfo> values;
  std::vector<int> outputs;
  std::string structure;   // JSON: how the flat outputs nest
};

struct Archive {
  std::string path;
  torch::jit::Module module;
  std::shared_ptr<torch::jit::Graph> graph;
  std::unordered_map<const void*, std::string> names;  // data pointer -> parameter or buffer name
  Specialised result;
  std::string text;        // last JSON handed out
};

// load.cpp
std::unique_ptr<Archive> load(const std::string& path);
// Binds forward's arguments (without self) to the flat list of tensors. Trailing arguments without tensors take their defaults. `given`
// receives the number of arguments that consumed tensors.
std::vector<c10::IValue> bind_arguments(const c10::FunctionSchema& schema, const std::vector<at::Tensor>& tensors, size_t* given = nullptr);
std::string type_text(const at::Tensor& t);

// specialise.cpp
void specialise(Archive& archive, const std::vector<at::Tensor>& tensors);

// dump.cpp
// Python stack frames of a node, innermost first, one `file:line` per line; src/source.rs picks the frame to show.
std::string source_of(const torch::jit::Node* n);
// Module path of a node, as `encoder.layer.0`.
std::string module_of(const torch::jit::Node* n);
std::string dump_result(const Archive& archive);
std::string dump_arguments(const c10::FunctionSchema& schema);
std::string dump_problems(const std::vector<Problem>& problems);
void write_string(std::ostream& o, const std::string& s);
void write_plain(std::ostream& o, const c10::IValue& v);
const char* dtype_name(at::ScalarType t);

// Runs `body`. Any failure becomes a JSON text in *error, and `otherwise` is returned.
template <class T, class F>
T guarded(char** error, T otherwise, F body) {
  auto fail = [&](const std::vector<Problem>& p) {
    *error = strdup(dump_problems(p).c_str());
    return otherwise;
  };
  try {
    return body();
  } catch (const Failure& e) {
    return fail(e.problems);
  } catch (const c10::Error& e) {
    return fail({{e.what_without_backtrace(), "", "", ""}});
  } catch (const std::exception& e) {
    return fail({{e.what(), "", "", ""}});
  } catch (...) {
    return fail({{"libtorch failed without a message", "", "", ""}});
  }
}

}  // namespace kiln
