// Views, each with one recipe: one call on one base. Operators that give several views at once become a slice for each.
// as_strided, which speaks of memory and not of elements, becomes a view of all elements in the order in which they lie
// in memory: a graph's values have no strides, so what reads them is resolved here or refused.
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

// Calls whose results' elements depend on how an operand lies in memory, and which stay calls.
const std::set<std::string> reads_memory = {"aten::as_strided_copy", "aten::as_strided_scatter", "aten::resize", "aten::resize_as"};

const char* kMemoryHelp = "name the elements instead (x[a:b], x.unfold(dim, size, step), x.diagonal(), x.reshape), or call contiguous() on the tensor first";

// All of its memory, each element once, in row-major order.
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

// What `name` gives of `base` and further arguments, recorded; a view of the base.
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

// The results of split, chunk, unbind and the like as a slice or select for each. True if `n` is one of these.
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
      // Where a piece without elements starts does not matter; where the stride is 0, all places hold the same.
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

// as_strided over the elements of the memory it reads, in their order. True if `n` was one and could be resolved.
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
    refuse(n, "`" + name + "` reads memory beside the elements of a tensor", kMemoryHelp);
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

// Refuses a call that reads memory where the operand does not lie as a graph's values do.
void Specialiser::check_memory_reads(Node* n, const std::vector<SymP>& ins) {
  const std::string name = n->kind().toQualString();
  if (reads_memory.count(name) && ins[0]->value.isTensor() && !is_plain(ins[0]->value.toTensor()))
    refuse(n, "`" + name + "` reads a tensor as it lies in memory, and this one is not dense and row-major", kMemoryHelp);
}

}  // namespace kiln
