// Functionalises in-place operators during specialisation: each becomes a call without side effects, and every alias of the changed
// memory gets a new value. A write through a view is scattered back into the view's base, and so on up to the root; other views of the
// changed memory are recomputed at their next use. Whatever cannot be scattered back or recomputed is refused with its source line,
// never dropped.
#include "specialise.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <optional>
#include <set>

namespace kiln {
using namespace torch::jit;

namespace {

// In-place operators that change a tensor's shape rather than its contents.
const std::set<std::string> changes_shape = {"aten::resize_", "aten::squeeze_", "aten::unsqueeze_", "aten::transpose_", "aten::t_",
                                             "aten::as_strided_", "aten::set_", "aten::resize_as_", "aten::swapaxes_", "aten::swapdims_"};
const std::set<std::string> changes_nothing = {"aten::requires_grad_", "aten::detach_"};

// Views that show the base's elements in the same order.
const std::set<std::string> reshapes = {"aten::view", "aten::reshape", "aten::unsqueeze", "aten::squeeze", "aten::flatten", "aten::unflatten", "aten::view_as",
                                        "aten::_unsafe_view", "aten::alias", "aten::detach", "aten::contiguous", "aten::to", "aten::reshape_as", "aten::ravel", "aten::expand", "aten::expand_as"};

c10::IValue ints(std::vector<int64_t> v) { return c10::IValue(std::move(v)); }

}  // namespace

void Specialiser::remember(const SymP& s) {
  if (auto* storage = storage_of(s->value.toTensor())) families[storage].push_back(s);
}

bool Specialiser::mutates_tensor(Node* n) {
  if (!n->maybeSchema()) return false;
  for (auto& a : n->schema().arguments())
    if (a.alias_info() && a.alias_info()->isWrite() && a.type()->kind() == TypeKind::TensorType) return true;
  return false;
}

void Specialiser::mutate(Node* n) {
  auto ins = operands(n);
  const auto& schema = n->schema();
  const std::string name = schema.name();
  if (changes_nothing.count(name)) return bind(n->output(), ins[0]);
  const bool writes_first = schema.arguments()[0].alias_info() && schema.arguments()[0].alias_info()->isWrite();
  if (!writes_first || changes_shape.count(name) || name.back() != '_') {
    refuse(n, "`" + name + "` changes a tensor in a way import cannot resolve", "use the operator that returns a new tensor");
    throw Failure(problems);
  }
  const SymP target = ins[0];
  SymP root = target;
  bool path_known = true;
  for (; root->base; root = root->base) path_known &= root->view >= 0;
  if (root->weight) {
    auto it = archive.names.find(root->value.toTensor().data_ptr());
    refuse(n, "`" + name + "` changes " + (it == archive.names.end() ? std::string("a constant of the model") : "the model's own tensor `" + it->second + "`") + " in place", "work on a copy (clone), return the new value, or save the module by torch.export (.pt2), where such a tensor is state");
  }
  if (!path_known) refuse(n, "`" + name + "` changes part of a tensor through a view that import cannot follow", "index the tensor itself, as in x[:, 2:4] = value, or change a copy (clone)");

  // Run the functional form (the name without the underscore) first: its result dtype tells whether a cast back is needed.
  const std::string functional = name == "aten::normal_" ? "aten::normal_functional" : name.substr(0, name.size() - 1);
  auto op = c10::Dispatcher::singleton().findSchema({functional, schema.overload_name()});
  if (!op) {
    refuse(n, "`" + name + "` has no out-of-place form", "use an operator that returns a new tensor");
    throw Failure(problems);
  }
  Stack stack;
  for (auto& s : ins) stack.push_back(s->value);
  Stack before = stack;
  try {
    op->callBoxed(before);
  } catch (const std::exception&) {
    before.clear();  // the in-place form below reports the error
  }
  std::vector<Arg> args;
  bool data = false;
  for (auto& s : ins) {
    args.push_back(arg(s));
    data |= depends_on_data(s);
  }
  data |= n->isNondeterministic();
  for (auto& s : families[storage_of(target->value.toTensor())])
    if (s->id >= 0) out.values[s->id].folded = at::Tensor();  // the in-place operator is about to overwrite its memory
  for (auto& v : out.values)
    if (v.folded.defined() && storage_of(v.folded) == storage_of(target->value.toTensor())) v.folded = at::Tensor();
  execute(n, stack);
  if (before.empty()) {
    refuse(n, "`" + functional + "` does not accept the arguments of `" + name + "`", "use an operator that returns a new tensor");
    throw Failure(problems);
  }

  const at::Tensor now = target->value.toTensor();
  int value = record(functional, schema.overload_name(), std::move(args), before[0].toTensor(), n);
  if (before[0].toTensor().scalar_type() != now.scalar_type())
    value = record("aten::to", "dtype", {Arg::value(value), Arg::constant((int64_t)now.scalar_type()), Arg::constant(false), Arg::constant(false), Arg::constant(c10::IValue())}, now, n);
  if (data) for (auto& s : families[storage_of(now)]) s->data = true;
  write_back(target, value, n);
  if (!n->outputs().empty()) bind(n->output(), target);
}

void Specialiser::write_back(const SymP& target, int value, const Node* at) {
  std::vector<SymP> path;
  int v = value;
  for (SymP s = target; s; s = s->base) {
    s->id = v;
    s->stale = false;
    path.push_back(s);
    if (s->base) v = scatter_into(s, v, at);
  }
  // Families are in creation order, so a view comes after its base.
  std::set<const Sym*> changed;
  for (auto& s : path) {
    changed.insert(s.get());
    if (s->base) part_of(s);
  }
  auto disjoint = [&](const SymP& a, const SymP& b) { return a->part->axis >= 0 && a->part->axis == b->part->axis && (a->part->end <= b->part->start || b->part->end <= a->part->start); };
  for (auto& other : families[storage_of(target->value.toTensor())]) {
    if (changed.count(other.get())) continue;
    if (!other->base || other->view < 0) {
      other->lost = at;
      continue;
    }
    if (!changed.count(other->base.get())) continue;
    part_of(other);
    if (std::any_of(path.begin(), path.end(), [&](const SymP& s) { return s->base == other->base && disjoint(s, other); })) continue;
    other->stale = true;
    changed.insert(other.get());
  }
}

const Span& Specialiser::part_of(const SymP& view) {
  if (view->part) return *view->part;
  view->part = Span{-1, 0, 0};
  const at::Tensor base = view->base->value.toTensor();
  const Call* made = view->view >= 0 ? &out.calls[view->view] : nullptr;
  if (!made || (made->name != "aten::slice" && made->name != "aten::select") || base.dim() == 0) return *view->part;
  auto number = [&](size_t i, int64_t otherwise) { return i < made->args.size() && made->args[i].plain.isInt() ? made->args[i].plain.toInt() : otherwise; };
  const int64_t axis = at::maybe_wrap_dim(number(1, 0), base.dim()), size = base.size(axis);
  auto place = [&](int64_t p) { return std::clamp(p < 0 ? p + size : p, (int64_t)0, size); };
  const int64_t start = place(number(2, 0));
  view->part = Span{axis, start, made->name == "aten::select" ? start + 1 : place(number(3, size))};
  return *view->part;
}

// Records the base of `view` with the viewed elements replaced by `value`. Returns the new value id.
int Specialiser::scatter_into(const SymP& view, int value, const Node* at) {
  const at::Tensor base = view->base->value.toTensor();
  if (view->view < 0) return id_of(view->base);  // refused already
  const Call made = out.calls[view->view];
  const Arg from = Arg::value(id_of(view->base)), v = Arg::value(value);
  if (made.name == "aten::slice" && made.args.size() == 5)
    return record("aten::slice_scatter", "", {from, v, made.args[1], made.args[2], made.args[3], made.args[4]}, base, at);
  if (made.name == "aten::narrow" && made.args[2].plain.isInt()) {
    int64_t start = made.args[2].plain.toInt();
    return record("aten::slice_scatter", "", {from, v, made.args[1], Arg::constant(start), Arg::constant(start + made.args[3].plain.toInt()), Arg::constant((int64_t)1)}, base, at);
  }
  if (made.name == "aten::select") return record("aten::select_scatter", "", {from, v, made.args[1], made.args[2]}, base, at);
  if (made.name == "aten::diagonal") return record("aten::diagonal_scatter", "", {from, v, made.args[1], made.args[2], made.args[3]}, base, at);
  if (made.name == "aten::transpose") return record("aten::transpose", "int", {v, made.args[1], made.args[2]}, base, at);
  if (made.name == "aten::t" || made.name == "aten::numpy_T" || made.name == "aten::mT") {
    std::vector<Arg> args{v};
    if (made.name == "aten::numpy_T" && base.dim() > 2) args.clear();
    if (!args.empty()) return record(made.name, "", std::move(args), base, at);
  }
  if (made.name == "aten::permute") {
    auto perm = made.args[1].plain.toIntVector();
    std::vector<int64_t> inverse(perm.size());
    for (size_t i = 0; i < perm.size(); i++) inverse[(perm[i] + perm.size()) % perm.size()] = (int64_t)i;
    return record("aten::permute", "", {v, Arg::constant(ints(inverse))}, base, at);
  }
  if (reshapes.count(made.name) && base.numel() == view->value.toTensor().numel())
    return record("aten::reshape", "", {v, Arg::constant(ints(base.sizes().vec()))}, base, at);
  return scatter_by_table(view, value, at);
}

// The same for any view that shows each element at most once: applies the view to an index tensor, and scatters by the resulting table.
int Specialiser::scatter_by_table(const SymP& view, int value, const Node* at) {
  const at::Tensor base = view->base->value.toTensor(), seen = view->value.toTensor();
  const Call made = out.calls[view->view];
  Stack stack{at::arange(base.numel()).reshape(base.sizes())};
  bool constant = true;
  for (size_t i = 1; i < made.args.size(); i++) {
    constant &= made.args[i].id < 0 && !made.args[i].list;
    stack.push_back(made.args[i].plain);
  }
  auto op = c10::Dispatcher::singleton().findSchema({made.name, made.overload});
  if (op && constant) {
    op->callBoxed(stack);
    const at::Tensor places = stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
    if (places.defined() && places.scalar_type() == at::kLong && places.sizes() == seen.sizes() && std::get<0>(at::_unique(places)).numel() == seen.numel()) {
      const int table = new_value(places.reshape(-1));
      out.values[table].constant = places.reshape(-1);
      const at::Tensor flat = base.reshape(-1);
      const int from = record("aten::reshape", "", {Arg::value(id_of(view->base)), Arg::constant(ints({base.numel()}))}, flat, at);
      const int values = record("aten::reshape", "", {Arg::value(value), Arg::constant(ints({seen.numel()}))}, seen.reshape(-1), at);
      const int put = record("aten::scatter", "src", {Arg::value(from), Arg::constant((int64_t)0), Arg::value(table), Arg::value(values)}, flat, at);
      return record("aten::reshape", "", {Arg::value(put), Arg::constant(ints(base.sizes().vec()))}, base, at);
    }
  }
  refuse(at, "changes part of a tensor through a view made by `" + made.name + "`", "index the tensor itself, as in x[:, 2:4] = value, or build the result with torch.cat or torch.where");
  return id_of(view->base);
}

// Recomputes a view whose base has changed: repeats the call that made it, on the base's current value.
void Specialiser::renew(const SymP& view) {
  Call made = out.calls[view->view];
  made.args[0] = Arg::value(id_of(view->base));
  view->stale = false;
  view->id = new_value(view->value.toTensor());
  made.outs = {view->id};
  out.calls.push_back(std::move(made));
}

void Specialiser::check_lost(const SymP& s) {
  if (s->lost)
    refuse(s->lost, std::string("`") + s->lost->kind().toQualString() + "` changes memory that is read through an alias afterwards, which import cannot follow", "change a copy: clone() before the operator that changes it in place");
  for (auto& i : s->items) check_lost(i);
}

}  // namespace kiln
