// Records each view as one call on one base. Operators that return several views at once (split, chunk, unbind) become one slice or
// select per view, so that each can be changed in place by itself.
//
// A graph's values have no strides, but the example run sees the strides that PyTorch has, so operators that read strides are resolved
// here or refused: as_strided, which addresses memory, becomes a view of all elements of the base in memory order.
#include "specialise.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace kiln {
using namespace torch::jit;

namespace {

const std::set<std::string> several_views = {"aten::split",        "aten::split_with_sizes",        "aten::chunk",        "aten::unsafe_split",
                                             "aten::unsafe_chunk", "aten::unsafe_split_with_sizes", "aten::tensor_split", "aten::hsplit",
                                             "aten::vsplit",       "aten::dsplit",                  "aten::unbind"};

// Operators that depend on the memory layout of an operand and are recorded as calls, so the operand must be dense and row-major.
const std::set<std::string> reads_memory = {"aten::as_strided_copy", "aten::as_strided_scatter", "aten::resize", "aten::resize_as"};

const char* kMemoryHelp = "name the elements instead (x[a:b], x.unfold(dim, size, step), x.diagonal(), x.reshape), or call contiguous() on the tensor first";

// Whether the tensor is contiguous and covers its whole storage.
bool is_plain(const at::Tensor& t) {
  return t.is_contiguous() && t.storage_offset() == 0 && (int64_t)t.storage().nbytes() == t.numel() * (int64_t)t.element_size();
}

int64_t piece_axis(const std::string& name, const std::vector<SymP>& ins, int64_t rank) {
  if (name == "aten::hsplit") return rank == 1 ? 0 : 1;
  if (name == "aten::vsplit") return 0;
  if (name == "aten::dsplit") return 2;
  return at::maybe_wrap_dim(ins[name == "aten::unbind" ? 1 : 2]->value.toInt(), rank);
}

}  // namespace

// Executes and records the view operator `name` on `base` and further arguments; returns the view.
SymP Specialiser::view_of(const SymP& base, const char* name, const char* overload, std::vector<c10::IValue> rest, const Node* at) {
  Stack stack{base->value};
  Call c{name, overload, {Arg::value(id_of(base))}, {}, source_of(at), module_of(at)};
  for (auto& v : rest) {
    c.args.push_back(Arg::constant(v));
    stack.push_back(v);
  }
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  auto s = std::make_shared<Sym>();
  s->value = stack[0];
  s->data = base->data;
  s->base = base;
  s->view = (int)out.calls.size();
  s->id = new_value(stack[0].toTensor());
  if (!s->data) out.values[s->id].folded = stack[0].toTensor();
  c.outs = {s->id};
  out.calls.push_back(std::move(c));
  remember(s);
  return s;
}

// Records the results of split, chunk, unbind and the like as one slice or select each. True if `n` is one of these.
bool Specialiser::pieces(Node* n, const std::vector<SymP>& ins, const Stack& results) {
  const std::string name = n->kind().toQualString();
  if (!several_views.count(name) || results.size() != 1 || !results[0].isTensorList()) return false;
  const SymP& base = ins[0];
  const at::Tensor whole = base->value.toTensor();
  const int64_t axis = piece_axis(name, ins, whole.dim());
  auto s = std::make_shared<Sym>();
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : results[0].toTensorVector()) {
    const int64_t i = (int64_t)list.size();
    if (name == "aten::unbind") {
      s->items.push_back(view_of(base, "aten::select", "int", {axis, i}, n));
    } else {
      // The start of an empty piece is irrelevant; with stride 0 all positions are the same element.
      const int64_t stride = whole.stride(axis);
      const int64_t start = t.numel() == 0 || stride == 0 ? 0 : (t.storage_offset() - whole.storage_offset()) / stride;
      s->items.push_back(view_of(base, "aten::slice", "Tensor", {axis, start, start + t.size(axis), (int64_t)1}, n));
    }
    list.push_back(s->items.back()->value.toTensor());
  }
  s->value = list;
  s->group = true;
  bind(n->output(), s);
  return true;
}

// Resolves as_strided to a view of the root's elements in memory order. True if `n` was one and could be resolved.
bool Specialiser::strided_view(Node* n, const std::vector<SymP>& ins) {
  const std::string name = n->kind().toQualString();
  if (name != "aten::as_strided" && name != "aten::_reshape_alias") return false;
  const at::Tensor x = ins[0]->value.toTensor();
  SymP root = ins[0];
  while (root->base) root = root->base;
  const at::Tensor memory = root->value.toTensor();
  const auto sizes = ins[1]->value.toIntVector(), strides = ins[2]->value.toIntVector();
  const int64_t offset = ins.size() > 3 && ins[3]->value.isInt() ? ins[3]->value.toInt() : x.storage_offset();
  int64_t last = offset;
  for (size_t i = 0; i < sizes.size(); i++) last += (sizes[i] - 1) * strides[i];
  const bool empty = std::count(sizes.begin(), sizes.end(), 0) > 0;
  if (!memory.is_non_overlapping_and_dense() || memory.storage_offset() != 0 || (!empty && last >= memory.numel())) {
    refuse(n, "`" + name + "` reads memory outside of a tensor's elements", kMemoryHelp);
    return false;
  }
  std::vector<int64_t> order(memory.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return memory.stride(a) > memory.stride(b); });
  SymP flat = root;
  if (!std::is_sorted(order.begin(), order.end())) flat = view_of(flat, "aten::permute", "", {order}, n);
  if (memory.dim() != 1) flat = view_of(flat, "aten::reshape", "", {std::vector<int64_t>{memory.numel()}}, n);
  bind(n->output(), view_of(flat, "aten::as_strided", "", {sizes, strides, offset}, n));
  return true;
}

// Refuses a layout-dependent call if the operand is not dense and row-major, as all values of a graph are.
void Specialiser::check_memory_reads(Node* n, const std::vector<SymP>& ins) {
  const std::string name = n->kind().toQualString();
  if (reads_memory.count(name) && ins[0]->value.isTensor() && !is_plain(ins[0]->value.toTensor()))
    refuse(n, "`" + name + "` depends on a tensor's memory layout, and this one is not dense and row-major", kMemoryHelp);
}

}  // namespace kiln
