// What the files of this shim share: the C ABI towards Rust (src/ffi.rs mirrors it) and the data behind its handles.
//
// load.cpp        archive -> frozen, inlined, cleaned TorchScript graph
// specialise.cpp  that graph, run once on example inputs -> flat list of calls, everything typed
// views.cpp       views as one call each; what reads strides (part of specialising)
// reads.cpp       what depends on data and cannot be followed (part of specialising)
// mutation.cpp    in-place operators -> calls without side effects (part of specialising)
// dump.cpp        calls, values, problems -> JSON
// execute.cpp     the whole module as a reference; one operator by name
//
// No C++ exception leaves an extern "C" function: failures are JSON texts, {"errors": [{message, source, module, help}]}.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace kiln {

// Something in the model that import refuses. `source` is as `source_of` gives it, empty if unknown.
struct Problem {
  std::string message, source, module, help;
};

// Thrown inside the shim; carries everything found so far.
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

// A tensor value: its type as running gave it, and its contents where they do not depend on the inputs.
struct ValueInfo {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  at::Tensor constant;     // a weight or literal: always available
  at::Tensor folded;       // computed from constants alone: the caller may take it instead of the call
};

struct Input {
  std::string name;
  int id = -1;             // value id; -1 for a scalar, which is fixed by specialising
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
// Forward's arguments after self, from the flat list of tensors; unused trailing optionals take their defaults. `given`
// gets the number of those that tensors were given for.
std::vector<c10::IValue> bind_arguments(const c10::FunctionSchema& schema, const std::vector<at::Tensor>& tensors, size_t* given = nullptr);
std::string type_text(const at::Tensor& t);

// specialise.cpp
void specialise(Archive& archive, const std::vector<at::Tensor>& tensors);

// dump.cpp
// Frames of the model's source behind a node, innermost first, `file:line` a line; src/source.rs picks the one to show.
std::string source_of(const torch::jit::Node* n);
// `encoder.layer.0`: the names by which modules were called.
std::string module_of(const torch::jit::Node* n);
std::string dump_result(const Archive& archive);
std::string dump_arguments(const c10::FunctionSchema& schema);
std::string dump_problems(const std::vector<Problem>& problems);
void write_string(std::ostream& o, const std::string& s);
void write_plain(std::ostream& o, const c10::IValue& v);
const char* dtype_name(at::ScalarType t);

// Runs `body`; a failure of any kind becomes a JSON text in *error and `otherwise` is returned.
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
