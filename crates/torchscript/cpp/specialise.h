// The specialiser: runs a graph once on example inputs, node by node, and records the operator calls.
#pragma once
#include "shim.h"

#include <map>
#include <optional>

namespace kiln {

struct Sym;
using SymP = std::shared_ptr<Sym>;

// The range of its base that a slice or select shows along one axis. Axis -1: the view is neither.
struct Span {
  int64_t axis, start, end;
};

// State of one value during the run. Aliases of the same object share one Sym, so that all of them see an in-place change.
struct Sym {
  c10::IValue value;          // the actual value of the run
  int id = -1;                // a tensor's current value id
  bool data = false;          // contents depend on the contents of an input
  bool weight = false;        // a weight, a buffer, or a literal of the model
  bool group = false;         // list, tuple or dict that holds tensors; `items` mirrors it
  std::vector<SymP> items;    // of a dict: its values, in the order of `keys`
  std::vector<c10::IValue> keys;
  SymP base;                  // the tensor that this one is a view of
  int view = -1;              // the call that made the view (index into Specialised::calls; argument 0 is the base), or -1 if unknown
  std::optional<Span> part;   // cache of part_of
  bool stale = false;         // the base has changed: repeat the call `view` at the next use
  const torch::jit::Node* lost = nullptr;  // a node that changed its memory in a way that cannot be recomputed: refused at the next use
};

class Specialiser {
 public:
  explicit Specialiser(Archive& a) : archive(a), out(a.result) {}
  void run(const std::vector<at::Tensor>& tensors);

 private:
  using Node = torch::jit::Node;
  Archive& archive;
  Specialised& out;
  std::unordered_map<const torch::jit::Value*, SymP> env;
  std::map<const void*, std::vector<SymP>> families;  // tensors by storage, in creation order
  std::map<const void*, int> literals;                // constant tensor -> value id
  std::vector<Problem> problems;

  void block(const torch::jit::Block* b);
  void node(Node* n);
  void branch(Node* n);
  void loop(Node* n);
  bool structural(Node* n);
  bool list_operator(Node* n, const std::vector<SymP>& ins);
  void group_of(Node* n, bool tuple);
  void dict_of(Node* n);
  void unpack(Node* n);
  void one_node(Node* n, torch::jit::Stack& stack);
  void execute(Node* n, torch::jit::Stack& stack);
  void call(Node* n);
  SymP bind_result(const c10::IValue& v, const std::vector<SymP>& ins, bool data, bool fold, int call_index, std::vector<int>& outs);
  void add_input(const std::string& name, const c10::IValue& v);
  SymP input(const std::string& name, const c10::IValue& v);
  std::string structure(const SymP& s, const Node* at);
  std::vector<SymP> operands(Node* n);
  void bind(const torch::jit::Value* v, SymP s) { env[v] = std::move(s); }
  const SymP& at_value(const torch::jit::Value* v) const { return env.at(v); }
  void refuse(const Node* n, std::string message, std::string help);

  // Recording.
  Arg arg(const SymP& s);
  int id_of(const SymP& s);
  int new_value(const at::Tensor& t);
  int record(std::string name, std::string overload, std::vector<Arg> args, const at::Tensor& like, const Node* at);

  // reads.cpp
  void check_data_reads(Node* n, const std::vector<SymP>& ins, const torch::jit::Stack& results, bool data);
  void check_layout(Node* n, const torch::jit::Stack& results);

  // views.cpp
  SymP view_of(const SymP& base, const char* name, const char* overload, std::vector<c10::IValue> rest, const Node* at);
  bool pieces(Node* n, const std::vector<SymP>& ins, const torch::jit::Stack& results);
  bool strided_view(Node* n, const std::vector<SymP>& ins);
  void check_memory_reads(Node* n, const std::vector<SymP>& ins);

  // mutation.cpp
  bool mutates_tensor(Node* n);
  void mutate(Node* n);
  void write_back(const SymP& target, int value, const Node* at);
  int scatter_into(const SymP& view, int value, const Node* at);
  int scatter_by_table(const SymP& view, int value, const Node* at);
  const Span& part_of(const SymP& view);
  void renew(const SymP& view);
  void check_lost(const SymP& s);
  void remember(const SymP& s);
};

const void* storage_of(const at::Tensor& t);
// Whether the contents of `s`, or of anything in it, depend on an input's contents.
bool depends_on_data(const SymP& s);

}  // namespace kiln
