// Specialisation: runs the frozen graph once on example inputs, operator by operator, and records the calls. Taken branches are
// inlined, loops are unrolled, numbers and lists become constants, and every tensor value gets its type. Each call keeps its module
// path and source line.
//
// A number read from the contents of an input would be wrong for the next input, so such reads are refused. The run continues after a
// refusal, so that all of them are reported together.
#include "specialise.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <set>
#include <sstream>

namespace kiln {
using namespace torch::jit;

namespace {

// Operators whose results depend only on the operands' types, never on their contents.
const std::set<std::string> reads_type_only = {
    "aten::size", "aten::sym_size", "aten::dim", "aten::ndimension", "aten::len", "aten::numel", "aten::sym_numel", "aten::stride",
    "aten::is_floating_point", "aten::is_complex", "aten::is_signed", "aten::is_contiguous", "aten::__is__", "aten::__isnot__",
    "aten::storage_offset", "aten::get_device", "aten::is_same_size", "aten::result_type", "aten::can_cast", "aten::new_ones",
    "aten::new_zeros", "aten::new_full", "aten::new_empty", "aten::ones_like", "aten::zeros_like", "aten::full_like",
    "aten::empty_like", "prim::dtype", "prim::device", "prim::layout", "prim::requires_grad", "prim::is_cuda", "prim::is_cpu",
    "prim::is_nested", "prim::is_quantized", "prim::is_sparse", "prim::is_mkldnn", "prim::type", "prim::shape", "prim::isinstance",
};

bool holds_tensors(const c10::IValue& v) {
  if (v.isTensor()) return v.toTensor().defined();
  if (v.isTuple()) {
    for (auto& e : v.toTupleRef().elements()) if (holds_tensors(e)) return true;
    return false;
  }
  if (v.isList()) {
    auto kind = v.toList().elementType()->kind();
    if (kind == TypeKind::TensorType) return true;
    for (const c10::IValue& e : v.toListRef()) if (holds_tensors(e)) return true;
    return kind == TypeKind::OptionalType || kind == TypeKind::ListType || kind == TypeKind::TupleType;
  }
  return v.isGenericDict();
}

}  // namespace

bool depends_on_data(const SymP& s) {
  if (s->data) return true;
  for (auto& i : s->items) if (depends_on_data(i)) return true;
  return false;
}

const void* storage_of(const at::Tensor& t) { return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr; }

void Specialiser::refuse(const Node* n, std::string message, std::string help) {
  Problem p{std::move(message), source_of(n), module_of(n), std::move(help)};
  for (auto& q : problems) if (q.message == p.message && q.source == p.source) return;
  problems.push_back(std::move(p));
}

// ---- recording ----

int Specialiser::new_value(const at::Tensor& t) {
  out.values.push_back({t.scalar_type(), t.sizes().vec(), {}, {}});
  return (int)out.values.size() - 1;
}

int Specialiser::id_of(const SymP& s) {
  if (s->stale) renew(s);
  if (s->id >= 0) return s->id;
  const at::Tensor& t = s->value.toTensor();
  auto [it, fresh] = literals.try_emplace(t.unsafeGetTensorImpl(), 0);
  if (fresh) {
    it->second = new_value(t);
    out.values.back().constant = t;
  }
  return s->id = it->second;
}

Arg Specialiser::arg(const SymP& s) {
  if (s->group) {
    Arg a;
    a.list = true;
    for (auto& i : s->items) a.items.push_back(arg(i));
    return a;
  }
  if (s->value.isTensor() && s->value.toTensor().defined()) return Arg::value(id_of(s));
  return Arg::constant(s->value);
}

int Specialiser::record(std::string name, std::string overload, std::vector<Arg> args, const at::Tensor& like, const Node* at) {
  int id = new_value(like);
  out.calls.push_back({std::move(name), std::move(overload), std::move(args), {id}, source_of(at), module_of(at)});
  return id;
}

// ---- control flow and structure ----

void Specialiser::block(const Block* b) {
  for (auto* n : const_cast<Block*>(b)->nodes()) node(n);
}

void Specialiser::branch(Node* n) {
  const Block* b = n->blocks()[at_value(n->input())->value.toBool() ? 0 : 1];
  block(b);
  for (size_t i = 0; i < n->outputs().size(); i++) bind(n->outputs()[i], at_value(b->outputs()[i]));
}

void Specialiser::loop(Node* n) {
  const int64_t limit = at_value(n->inputs()[0])->value.toInt();
  bool go = at_value(n->inputs()[1])->value.toBool();
  const Block* b = n->blocks()[0];
  std::vector<SymP> carried;
  for (size_t i = 2; i < n->inputs().size(); i++) carried.push_back(at_value(n->inputs()[i]));
  for (int64_t i = 0; i < limit && go; i++) {
    auto counter = std::make_shared<Sym>();
    counter->value = i;
    bind(b->inputs()[0], counter);
    for (size_t k = 0; k < carried.size(); k++) bind(b->inputs()[k + 1], carried[k]);
    block(b);
    go = at_value(b->outputs()[0])->value.toBool();
    for (size_t k = 0; k < carried.size(); k++) carried[k] = at_value(b->outputs()[k + 1]);
  }
  for (size_t k = 0; k < carried.size(); k++) bind(n->outputs()[k], carried[k]);
}

std::vector<SymP> Specialiser::operands(Node* n) {
  std::vector<SymP> ins;
  for (auto* v : n->inputs()) check_lost(ins.emplace_back(at_value(v)));
  return ins;
}

void Specialiser::group_of(Node* n, bool tuple) {
  auto s = std::make_shared<Sym>();
  s->items = operands(n);
  std::vector<c10::IValue> values;
  for (auto& i : s->items) values.push_back(i->value);
  if (tuple) {
    s->value = c10::ivalue::Tuple::create(std::move(values));
  } else {
    c10::impl::GenericList list(n->output()->type()->expectRef<ListType>().getElementType());
    for (auto& v : values) list.push_back(v);
    s->value = std::move(list);
  }
  s->group = holds_tensors(s->value);
  if (!s->group) {
    for (auto& i : s->items) s->data |= i->data;
    s->items.clear();
  }
  bind(n->output(), s);
}

void Specialiser::dict_of(Node* n) {
  auto& type = n->output()->type()->expectRef<DictType>();
  c10::impl::GenericDict dict(type.getKeyType(), type.getValueType());
  auto s = std::make_shared<Sym>();
  auto ins = operands(n);
  for (size_t i = 0; i + 1 < ins.size(); i += 2) {
    dict.insert_or_assign(ins[i]->value, ins[i + 1]->value);
    s->keys.push_back(ins[i]->value);
    s->items.push_back(ins[i + 1]);
  }
  s->value = dict;
  s->group = true;
  bind(n->output(), s);
}

void Specialiser::unpack(Node* n) {
  const SymP& g = at_value(n->input());
  if (g->group) {
    for (size_t i = 0; i < n->outputs().size() && i < g->items.size(); i++) bind(n->outputs()[i], g->items[i]);
    return;
  }
  std::vector<c10::IValue> items;
  if (g->value.isTuple()) items = g->value.toTupleRef().elements().vec();
  else { auto list = g->value.toList(); for (size_t i = 0; i < list.size(); i++) items.push_back(list.get(i)); }
  for (size_t i = 0; i < n->outputs().size() && i < items.size(); i++) {
    auto s = std::make_shared<Sym>();
    s->value = items[i];
    s->data = g->data;
    bind(n->outputs()[i], s);
  }
}

// Applies list and dict operators to groups: `items` and `keys` mirror the change to the real list or dict.
bool Specialiser::list_operator(Node* n, const std::vector<SymP>& ins) {
  if (ins.empty()) return false;
  const std::string name = n->kind().toQualString();
  const SymP& g = ins[0];
  auto index_of = [&](const c10::IValue& v) -> int64_t {
    if (g->value.isGenericDict()) {
      for (size_t i = 0; i < g->keys.size(); i++) if (g->keys[i] == v) return (int64_t)i;
      return -1;
    }
    int64_t i = v.toInt(), size = (int64_t)g->items.size();
    return i < 0 ? i + size : i;
  };
  auto item_exists = [&](int64_t i) { return i >= 0 && i < (int64_t)g->items.size(); };
  if (name == "prim::TupleIndex" || name == "aten::__getitem__" || name == "aten::get") {
    if (!g->group) return false;
    int64_t i = index_of(ins[1]->value);
    if (!item_exists(i)) return false;  // executing the operator raises the error
    bind(n->output(), g->items[i]);
    return true;
  }
  // A list that is still empty may receive tensors.
  const bool of_tensors = g->group || (ins.size() > 1 && ins.back()->value.isTensor());
  if (!of_tensors || !(g->value.isList() || g->value.isGenericDict())) return false;
  auto bind_self = [&] { if (!n->outputs().empty()) bind(n->output(), g); };
  if (name == "aten::append") {
    g->value.toList().push_back(ins[1]->value);
    g->group = true;
    g->items.push_back(ins[1]);
    bind_self();
    return true;
  }
  if (name == "aten::extend" || (name == "aten::add_" && g->value.isList())) {
    for (auto& i : ins[1]->items) { g->value.toList().push_back(i->value); g->items.push_back(i); }
    bind_self();
    return true;
  }
  if (name == "aten::_set_item") {
    int64_t i = index_of(ins[1]->value);
    if (g->value.isGenericDict()) {
      g->value.toGenericDict().insert_or_assign(ins[1]->value, ins[2]->value);
      if (i < 0) { g->keys.push_back(ins[1]->value); g->items.push_back(ins[2]); } else g->items[i] = ins[2];
    } else {
      if (!item_exists(i)) return false;
      g->value.toList().set(i, ins[2]->value);
      g->items[i] = ins[2];
    }
    bind_self();
    return true;
  }
  if (name == "aten::list" || name == "aten::add" || name == "aten::values") {
    auto s = std::make_shared<Sym>();
    s->group = true;
    c10::impl::GenericList list(n->output()->type()->expectRef<ListType>().getElementType());
    for (auto& from : ins) for (auto& i : from->items) { list.push_back(i->value); s->items.push_back(i); }
    s->value = list;
    bind(n->output(), s);
    return true;
  }
  if (name == "aten::len" || name == "aten::keys" || name == "aten::__contains__") return false;
  if (g->group && (g->value.isList() || g->value.isGenericDict()) && n->maybeSchema() && n->schema().arguments()[0].type()->kind() != TypeKind::TensorType) {
    const auto& a = n->schema().arguments()[0];
    if (a.alias_info() && a.alias_info()->isWrite()) {
      refuse(n, "changes a list of tensors with `" + name + "`", "build the list with append or as a literal");
      return false;
    }
  }
  return false;
}

// Handles nodes that are not operator calls. True if `n` was one of them.
bool Specialiser::structural(Node* n) {
  switch (n->kind()) {
    case prim::If: branch(n); return true;
    case prim::Loop: loop(n); return true;
    case prim::ListConstruct: group_of(n, false); return true;
    case prim::TupleConstruct: group_of(n, true); return true;
    case prim::DictConstruct: dict_of(n); return true;
    case prim::ListUnpack:
    case prim::TupleUnpack: unpack(n); return true;
    case prim::unchecked_cast: bind(n->output(), at_value(n->input())); return true;
    case prim::Print:
    case aten::warn: return true;
    case prim::Uninitialized: bind(n->output(), std::make_shared<Sym>()); return true;
    case prim::Constant: {
      auto s = std::make_shared<Sym>();
      s->value = *toIValue(n->output());
      if (s->value.isDevice()) s->value = at::Device(at::kCPU);  // one device for the whole graph
      s->weight = true;
      if (s->value.isTensor() && s->value.toTensor().defined()) {
        id_of(s);
        remember(s);
      } else if (holds_tensors(s->value)) {
        std::vector<int> none;
        s = bind_result(s->value, {}, false, false, -1, none);
      }
      bind(n->output(), s);
      return true;
    }
    case prim::GetAttr: {
      auto s = std::make_shared<Sym>();
      s->value = at_value(n->input())->value.toObject()->getAttr(n->s(attr::name));
      s->weight = true;
      if (s->value.isTensor() && s->value.toTensor().defined()) {
        for (auto& known : families[storage_of(s->value.toTensor())])
          if (known->value.toTensor().is_same(s->value.toTensor())) { bind(n->output(), known); return true; }
        id_of(s);
        remember(s);
      }
      bind(n->output(), s);
      return true;
    }
    case prim::SetAttr:
      refuse(n, "forward assigns `self." + n->s(attr::name) + "`: the model keeps state between calls", "return the new value instead and pass it in as an input next time, or save the module by torch.export (.pt2), where a buffer that it writes is state");
      return true;
    default: return false;
  }
}

// ---- operator calls ----

// Executes an interpreter instruction without an operator (isinstance, TupleSlice, ...) as a graph of this one node.
void Specialiser::one_node(Node* n, Stack& stack) {
  auto g = std::make_shared<Graph>();
  std::unordered_map<Value*, Value*> map;
  for (auto* v : n->inputs()) {
    auto* x = g->addInput();
    x->setType(v->type());
    map[v] = x;
  }
  auto* c = g->insertNode(g->createClone(n, [&](Value* v) { return map.at(v); }));
  for (auto* o : c->outputs()) g->registerOutput(o);
  InterpreterState(Code(g, "one_node")).run(stack);
}

void Specialiser::execute(Node* n, Stack& stack) {
  try {
    if (n->kind() == prim::RaiseException) throw Failure("the model raises: " + (stack.empty() ? std::string() : stack[0].isString() ? stack[0].toStringRef() : std::string()));
    if (n->maybeOperator()) n->getOperation()(stack);
    else one_node(n, stack);
  } catch (const std::exception& e) {
    auto* c10_error = dynamic_cast<const c10::Error*>(&e);
    std::string text = c10_error ? c10_error->what_without_backtrace() : e.what();
    std::string given = "the example inputs were";
    for (auto& i : out.inputs) given += " " + i.name + ": " + (i.id >= 0 ? std::string(dtype_name(out.values[i.id].dtype)) + c10::str(at::IntArrayRef(out.values[i.id].sizes)) : std::string("a scalar"));
    refuse(n, std::string("running the model on the example inputs fails in `") + n->kind().toQualString() + "`: " + text.substr(0, text.find("\nException raised from")), given);
    throw Failure(problems);
  }
}

// Creates the Sym of one result. Tensors get value ids, which are appended to `outs`.
SymP Specialiser::bind_result(const c10::IValue& v, const std::vector<SymP>& ins, bool data, bool fold, int call_index, std::vector<int>& outs) {
  auto s = std::make_shared<Sym>();
  s->value = v;
  s->data = data;
  s->weight = call_index < 0;
  if (v.isTensor() && v.toTensor().defined()) {
    const at::Tensor& t = v.toTensor();
    if (call_index < 0) {
      id_of(s);
    } else {
      outs.push_back(s->id = new_value(t));
      if (fold && t.layout() == at::kStrided) out.values[s->id].folded = t;
      for (auto& i : ins)
        if (i->id >= 0 && storage_of(t) && storage_of(i->value.toTensor()) == storage_of(t)) {
          s->base = i;
          s->view = i == ins[0] ? call_index : -1;
          break;
        }
    }
    remember(s);
  } else if (v.isTuple() || (v.isList() && holds_tensors(v))) {
    s->group = true;
    std::vector<c10::IValue> items;
    if (v.isTuple()) items = v.toTupleRef().elements().vec();
    else { auto l = v.toList(); for (size_t i = 0; i < l.size(); i++) items.push_back(l.get(i)); }
    for (auto& i : items) {
      s->items.push_back(bind_result(i, ins, data, fold, call_index, outs));
      s->items.back()->view = -1;  // one of several results: the call alone cannot recompute it
    }
  }
  return s;
}

void Specialiser::call(Node* n) {
  auto ins = operands(n);
  Stack stack;
  for (auto& s : ins) stack.push_back(s->value);
  execute(n, stack);
  check_layout(n, stack);
  check_memory_reads(n, ins);

  const std::string name = n->kind().toQualString();
  bool data = false;
  for (auto& s : ins) data |= depends_on_data(s);
  data &= !reads_type_only.count(name);
  check_data_reads(n, ins, stack, data);
  data |= n->maybeSchema() && n->isNondeterministic();

  bool any_tensor = false;
  for (auto& v : stack) any_tensor |= holds_tensors(v);
  if (!any_tensor) {
    for (size_t i = 0; i < stack.size(); i++) {
      auto s = std::make_shared<Sym>();
      s->value = stack[i];
      s->data = data;
      bind(n->outputs()[i], s);
    }
    return;
  }
  // If the result is the operand itself (a no-op contiguous, to or dropout), record no call.
  if (stack.size() == 1 && stack[0].isTensor())
    for (auto& s : ins)
      if (s->value.isTensor() && s->value.toTensor().is_same(stack[0].toTensor())) return bind(n->output(), s);
  if (pieces(n, ins, stack) || strided_view(n, ins)) return;

  Call c;
  c.name = n->maybeSchema() ? n->schema().name() : name;
  c.overload = n->maybeSchema() ? n->schema().overload_name() : "";
  c.source = source_of(n);
  c.module = module_of(n);
  for (auto& s : ins) c.args.push_back(arg(s));
  const int index = (int)out.calls.size();
  out.calls.push_back({});
  for (size_t i = 0; i < stack.size(); i++) bind(n->outputs()[i], bind_result(stack[i], ins, data, !data, index, c.outs));
  out.calls[index] = std::move(c);
}

void Specialiser::node(Node* n) {
  if (structural(n) || list_operator(n, operands(n))) return;
  if (n->kind() == prim::CallFunction || n->kind() == prim::CallMethod || n->kind() == prim::CreateObject || n->kind() == prim::fork || n->kind() == prim::Enter) {
    refuse(n, std::string("uses `") + n->kind().toQualString() + "`, which import does not support", "trace the model (torch.jit.trace) instead of scripting it");
    throw Failure(problems);
  }
  if (mutates_tensor(n)) mutate(n);
  else call(n);
}

// ---- inputs and outputs ----

SymP Specialiser::input(const std::string& name, const c10::IValue& v) {
  auto s = std::make_shared<Sym>();
  s->value = v;
  if (v.isTensor()) {
    s->data = true;
    s->id = new_value(v.toTensor());
    remember(s);
    out.inputs.push_back({name, s->id, {}});
  } else if (v.isTuple() || v.isList()) {
    s->group = true;
    std::vector<c10::IValue> items;
    if (v.isTuple()) items = v.toTupleRef().elements().vec();
    else { auto l = v.toList(); for (size_t i = 0; i < l.size(); i++) items.push_back(l.get(i)); }
    for (size_t i = 0; i < items.size(); i++) s->items.push_back(input(name + "." + std::to_string(i), items[i]));
  } else if (!v.isNone()) {
    out.inputs.push_back({name, -1, v});
  }
  return s;
}

// Returns JSON of how the outputs nest, and appends their tensors to the flat list of outputs.
std::string Specialiser::structure(const SymP& s, const Node* at) {
  check_lost(s);
  std::ostringstream o;
  auto items = [&] {
    for (size_t i = 0; i < s->items.size(); i++) o << (i ? "," : "") << structure(s->items[i], at);
  };
  if (s->value.isTensor() && s->value.toTensor().defined()) {
    o << "{\"tensor\":" << out.outputs.size() << '}';
    out.outputs.push_back(id_of(s));
  } else if (s->value.isGenericDict()) {
    o << "{\"dict\":[";
    for (size_t i = 0; i < s->items.size(); i++) {
      o << (i ? "," : "") << '[';
      write_string(o, s->keys[i].isString() ? s->keys[i].toStringRef() : c10::str(s->keys[i]));
      o << ',' << structure(s->items[i], at) << ']';
    }
    o << "]}";
  } else if (s->group || s->value.isTuple()) {
    o << (s->value.isTuple() ? "{\"tuple\":[" : "{\"list\":[");
    items();
    o << "]}";
  } else {
    o << "{\"constant\":";
    write_plain(o, s->value);
    o << '}';
  }
  return o.str();
}

void Specialiser::run(const std::vector<at::Tensor>& tensors) {
  const auto schema = archive.module.get_method("forward").function().getSchema();
  size_t given = 0;
  auto values = bind_arguments(schema, tensors, &given);
  auto params = archive.graph->inputs();
  size_t first = 0;
  if (!params.empty() && params[0]->type()->cast<ClassType>()) {
    auto self = std::make_shared<Sym>();
    self->value = archive.module._ivalue();
    bind(params[0], self);
    first = 1;
  }
  for (size_t i = 0; i < values.size() && first + i < params.size(); i++) {
    if (i >= given) {  // omitted: its default is a constant of the graph
      auto s = std::make_shared<Sym>();
      s->value = values[i];
      bind(params[first + i], s);
      continue;
    }
    // Copy the inputs: in-place operators must not change the caller's data.
    std::function<c10::IValue(const c10::IValue&)> own = [&](const c10::IValue& v) -> c10::IValue {
      if (v.isTensor() && v.toTensor().defined()) return v.toTensor().clone();
      if (v.isTuple()) {
        std::vector<c10::IValue> e;
        for (auto& x : v.toTupleRef().elements()) e.push_back(own(x));
        return c10::ivalue::Tuple::create(std::move(e));
      }
      if (v.isTensorList()) {
        c10::List<at::Tensor> l;
        for (const at::Tensor& x : v.toTensorVector()) l.push_back(x.clone());
        return l;
      }
      return v;
    };
    bind(params[first + i], input(schema.arguments()[i + 1].name(), own(values[i])));
  }
  block(archive.graph->block());
  std::vector<std::string> parts;
  for (auto* o : archive.graph->outputs()) parts.push_back(structure(at_value(o), archive.graph->return_node()));
  out.structure = parts.size() == 1 ? parts[0] : "{\"tuple\":[]}";
  if (!problems.empty()) throw Failure(problems);
}

void specialise(Archive& archive, const std::vector<at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  archive.result = {};
  Specialiser(archive).run(tensors);
}

}  // namespace kiln

extern "C" {

// Specialises on example tensors. Returns the result as JSON, owned by the archive until the next call.
const char* kt_specialise(kiln::Archive* a, at::Tensor** tensors, int n, char** error) {
  return kiln::guarded(error, (const char*)nullptr, [&] {
    std::vector<at::Tensor> list;
    for (int i = 0; i < n; i++) list.push_back(*tensors[i]);
    kiln::specialise(*a, list);
    a->text = kiln::dump_result(*a);
    return a->text.c_str();
  });
}

// Contents of a constant or folded value as a new dense tensor, owned by the caller; of a complex one its parts, along one more axis. Null for
// other values.
at::Tensor* kt_value(kiln::Archive* a, int id, char** error) {
  return kiln::guarded(error, (at::Tensor*)nullptr, [&]() -> at::Tensor* {
    const kiln::ValueInfo& v = a->result.values.at(id);
    const at::Tensor& t = v.constant.defined() ? v.constant : v.folded;
    if (!t.defined()) return nullptr;
    at::Tensor dense = t.contiguous().resolve_neg().resolve_conj();
    return new at::Tensor(dense.is_complex() ? at::view_as_real(dense) : dense);
  });
}

}  // extern "C"
