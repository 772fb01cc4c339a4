// Loads an archive into a frozen, inlined, cleaned TorchScript graph, and binds forward's arguments to a flat list of tensors.
//
// Exceptions and asserts stay in the graph: specialisation evaluates their conditions. In-place operators stay too: specialisation
// resolves them. torch's own pass (RemoveTensorMutation) would change the strides of results, which as_strided could observe.
#include "shim.h"

#include <torch/csrc/jit/passes/common_subexpression_elimination.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/normalize_ops.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/passes/remove_dropout.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/serialization/import.h>

#include <set>
#include <sstream>
#include <unordered_set>

namespace kiln {
using namespace torch::jit;

namespace {

void clean(std::shared_ptr<Graph>& g) {
  Inline(*g);
  LowerSimpleTuples(g);
  PeepholeOptimize(g);
  removeDropout(g);
  RemoveListMutation(g);
  NormalizeOps(g);  // aliases to canonical names: multiply -> mul
  EliminateDeadCode(g);
}

// Whether the node shows training mode: active dropout, or batch statistics although running statistics exist.
bool trains(const Node* n) {
  static const std::set<std::string> dropouts = {"aten::dropout", "aten::dropout_", "aten::feature_dropout", "aten::feature_dropout_", "aten::alpha_dropout", "aten::alpha_dropout_", "aten::feature_alpha_dropout", "aten::feature_alpha_dropout_"};
  auto on = [&](size_t i) { auto v = i < n->inputs().size() ? toIValue(n->input(i)) : std::nullopt; return v && v->isBool() && v->toBool(); };
  const std::string name = n->kind().toQualString();
  if (dropouts.count(name)) {
    auto rate = toIValue(n->input(1));
    return on(2) && !(rate && rate->isDouble() && rate->toDouble() == 0);
  }
  // Without running statistics (track_running_stats=False) batch statistics are correct in evaluation too.
  return name == "aten::batch_norm" && on(5) && !n->input(3)->type()->isSubtypeOf(*NoneType::get());
}

// Refuses an archive that was saved in training mode, at the first node that shows it. Scripted modules have been switched to evaluation
// mode by now; a trace keeps the mode in which it was traced.
void refuse_training(const Block* b) {
  for (auto* n : b->nodes()) {
    if (trains(n))
      throw Failure(std::vector<Problem>{Problem{std::string("the model was saved in training mode, as `") + n->kind().toQualString() + "` shows", source_of(n), module_of(n),
                      "in Python, before it is saved:\n    model.eval()  # F.dropout also needs training=self.training\n    torch.jit.trace(model, inputs).save(\"model.pt\")"}});
    for (auto* inner : n->blocks()) refuse_training(inner);
  }
}

std::string missing_operator_help(const std::string& what) {
  if (what.find("Unknown builtin op") != std::string::npos)
    return "the model uses an operator of an extension library; export it without that operator";
  return "check that the file is a TorchScript archive written by torch.jit.save (torch 2.11 or older)";
}

// Operators that access files, or memory outside of their operands. Freezing would execute those that take only constants.
const std::unordered_set<std::string> forbidden = {"aten::from_file", "aten::save", "aten::_reshape_alias", "aten::_reshape_alias_copy"};

void refuse_in(at::ArrayRef<const Block*> blocks, std::vector<Problem>& found) {
  for (const Block* b : blocks)
    for (const Node* n : b->nodes()) {
      const std::string kind = n->kind().toQualString();
      if (forbidden.count(kind))
        found.push_back({"`" + kind + "` accesses files or memory outside of the model's tensors, so Kiln does not run it", source_of(n), module_of(n), "compute this part outside the model"});
      refuse_in(n->blocks(), found);
    }
}

void refuse_attacks(const Module& m) {
  std::vector<Problem> found;
  for (const auto* f : m._ivalue()->compilation_unit()->get_functions())
    if (auto* g = tryToGraphFunction(*const_cast<Function*>(f))) refuse_in(std::vector<const Block*>{g->graph()->block()}, found);
  if (!found.empty()) throw Failure(found);
}

// Adds an attribute `name` to class `type` that holds the module found by following `path`, and sets it on every object of the class.
// False if some object has no such path.
bool add_shortcut(const c10::IValue::HashAliasedIValues& all, const ClassTypePtr& type, const std::vector<std::string>& path, const std::string& name) {
  if (type->hasAttribute(name)) return true;
  std::vector<std::pair<c10::intrusive_ptr<c10::ivalue::Object>, c10::IValue>> ends;
  for (const c10::IValue& v : all) {
    if (!v.isObject() || v.toObjectRef().type() != type) continue;
    c10::IValue end = v;
    for (auto& part : path) {
      if (!end.isObject() || !end.toObjectRef().type()->hasAttribute(part)) return false;
      end = end.toObjectRef().getAttr(part);
    }
    ends.emplace_back(v.toObject(), end);
  }
  if (ends.empty()) return false;
  const size_t slot = type->addAttribute(name, ends[0].second.type());
  for (auto& [object, end] : ends) object->setSlot(slot, end);
  return true;
}

// Inlining records only the last attribute name of a called module: for `self.layer.0`, where `layer` is a list, just `0`. So every call
// is rewritten to reach its module in one step, through an attribute named `layer.0`.
void name_calls(at::ArrayRef<Block*> blocks, const c10::IValue::HashAliasedIValues& all) {
  for (Block* b : blocks)
    for (Node* n : b->nodes()) {
      name_calls(n->blocks(), all);
      if (n->kind() != prim::CallMethod) continue;
      std::vector<std::string> path;
      Value* base = n->input(0);
      for (; base->node()->kind() == prim::GetAttr; base = base->node()->input(0)) path.insert(path.begin(), base->node()->s(attr::name));
      auto type = base->type()->cast<ClassType>();
      if (path.size() < 2 || !type) continue;
      std::string name = path[0];
      for (size_t i = 1; i < path.size(); i++) name += "." + path[i];
      if (!add_shortcut(all, type, path, name)) continue;
      Node* get = b->owningGraph()->createGetAttr(base, name);
      get->insertBefore(n);
      n->replaceInput(0, get->output());
    }
}

void name_whole_paths(const Module& m) {
  c10::IValue::HashAliasedIValues all;
  c10::IValue(m._ivalue()).getSubValues(all);
  for (auto* f : m._ivalue()->compilation_unit()->get_functions())
    if (auto* g = tryToGraphFunction(*f)) name_calls(std::vector<Block*>{g->graph()->block()}, all);
}

// Arithmetic whose operands may be Python numbers, which tracing records as tensors of rank 0. Other operators take numbers as numbers, so a
// constant tensor among their operands is one.
const std::unordered_set<std::string> takes_numbers_as_tensors = {
    "aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::subtract", "aten::subtract_", "aten::mul", "aten::mul_", "aten::multiply",
    "aten::multiply_", "aten::div", "aten::div_", "aten::divide", "aten::divide_", "aten::true_divide", "aten::true_divide_",
    "aten::floor_divide", "aten::floor_divide_",
};

// The type in which tracing records a Python number of that kind.
bool number_type(at::ScalarType t) { return t == at::kDouble || t == at::kLong || t == at::kBool || t == at::kComplexDouble; }

// Tracing records the Python number in `x * 0.5` as a tensor of rank 0, and saving loses the flag that makes it take part in type promotion
// as a number. The flag is set again, on a constant of this use alone. It has to be done before freezing, which computes with constants and
// makes tensors of the model constants too; an attribute keeps the constant from being merged with an equal tensor.
void mark_numbers(at::ArrayRef<Block*> blocks) {
  for (Block* b : blocks)
    for (Node* n : b->nodes()) {
      mark_numbers(n->blocks());
      if (!takes_numbers_as_tensors.count(n->kind().toQualString())) continue;
      for (size_t i = 0; i < 2 && i < n->inputs().size(); i++) {
        Node* from = n->input(i)->node();
        auto v = from->kind() == prim::Constant ? toIValue(n->input(i)) : std::nullopt;
        if (!v || !v->isTensor() || !v->toTensor().defined()) continue;
        const at::Tensor& t = v->toTensor();
        if (t.dim() != 0 || !number_type(t.scalar_type()) || t.requires_grad()) continue;
        at::Tensor number = t.clone();
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        Node* constant = b->owningGraph()->create(prim::Constant);
        constant->t_(attr::value, number);
        constant->i_(Symbol::attr("number"), 1);
        constant->output()->setType(n->input(i)->type());
        constant->setSourceRange(from->sourceRange());
        constant->insertBefore(n);
        n->replaceInput(i, constant->output());
      }
    }
}

void mark_numbers(const Module& m) {
  for (auto* f : m._ivalue()->compilation_unit()->get_functions())
    if (auto* g = tryToGraphFunction(*f)) mark_numbers(std::vector<Block*>{g->graph()->block()});
}

Module open_module(const std::string& path) {
  try {
    return torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& e) {
    throw Failure(std::string("cannot read the archive: ") + e.what_without_backtrace(), missing_operator_help(e.what_without_backtrace()));
  }
}

// The next argument of type `t`, taken from `tensors` starting at `next`.
c10::IValue bind_one(const c10::Argument& arg, const TypePtr& t, const std::vector<at::Tensor>& tensors, size_t& next, bool last);

c10::IValue bind_scalar(const c10::Argument& arg, const at::Tensor& t) {
  if (t.numel() != 1)
    throw Failure("argument `" + arg.name() + "` is " + arg.type()->annotation_str() + ", but a tensor " + type_text(t) + " was given for it", "give a tensor of rank 0");
  switch (arg.type()->kind() == TypeKind::OptionalType ? arg.type()->expectRef<OptionalType>().getElementType()->kind() : arg.type()->kind()) {
    case TypeKind::IntType:
      if (at::isFloatingType(t.scalar_type()))
        throw Failure("argument `" + arg.name() + "` is int, but " + type_text(t) + " was given for it", "give an int64 tensor of rank 0");
      return t.item().toLong();
    case TypeKind::BoolType: return t.item().toBool();
    case TypeKind::NumberType: return at::isFloatingType(t.scalar_type()) ? c10::IValue(t.item().toDouble()) : c10::IValue(t.item().toLong());
    default: return t.item().toDouble();
  }
}

c10::IValue bind_one(const c10::Argument& arg, const TypePtr& t, const std::vector<at::Tensor>& tensors, size_t& next, bool last) {
  switch (t->kind()) {
    case TypeKind::OptionalType: return bind_one(arg, t->expectRef<OptionalType>().getElementType(), tensors, next, last);
    case TypeKind::TensorType: return tensors.at(next++);
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::BoolType:
    case TypeKind::NumberType: return bind_scalar(arg, tensors.at(next++));
    case TypeKind::TupleType: {
      std::vector<c10::IValue> items;
      for (auto& e : t->expectRef<TupleType>().elements()) items.push_back(bind_one(arg, e, tensors, next, false));
      return c10::ivalue::Tuple::create(std::move(items));
    }
    case TypeKind::ListType:
      if (last && t->expectRef<ListType>().getElementType()->kind() == TypeKind::TensorType) {
        c10::List<at::Tensor> items;
        while (next < tensors.size()) items.push_back(tensors[next++]);
        return items;
      }
      [[fallthrough]];
    default:
      throw Failure("argument `" + arg.name() + "` of forward is " + t->annotation_str() + ", which has no form as input tensors",
                    "wrap the model in a module whose forward takes tensors, numbers, and tuples of these");
  }
}

}  // namespace

std::string type_text(const at::Tensor& t) {
  std::ostringstream o;
  o << dtype_name(t.scalar_type()) << '[';
  for (int64_t i = 0; i < t.dim(); i++) o << (i ? "," : "") << t.size(i);
  o << ']';
  return o.str();
}

std::unique_ptr<Archive> load(const std::string& path) {
  at::NoGradGuard no_grad;
  auto a = std::make_unique<Archive>();
  a->path = path;
  Module m = open_module(path);
  if (!m.find_method("forward")) throw Failure("the archive has no method `forward`", "save a module, not a function or a state dict");
  refuse_attacks(m);
  m.eval();
  for (auto p : m.named_parameters()) if (p.value.defined() && p.value.numel()) a->names[p.value.data_ptr()] = p.name;
  for (auto p : m.named_buffers()) if (p.value.defined() && p.value.numel()) a->names[p.value.data_ptr()] = p.name;
  name_whole_paths(m);
  mark_numbers(m);
  freeze_module_inplace(&m);
  a->module = m;
  a->graph = m.get_method("forward").graph()->copy();
  clean(a->graph);
  refuse_training(a->graph->block());
  return a;
}

// Help text: how to pass inputs, from Python or at random.
static std::string inputs_help(const std::vector<c10::Argument>& args) {
  std::ostringstream o;
  o << "give a file with a tensor for each argument, written in Python:\n    from safetensors.torch import save_file\n    save_file({";
  for (size_t i = 1; i < args.size(); i++) o << (i > 1 ? ", " : "") << '"' << i - 1 << "\": " << args[i].name();
  o << "}, \"in.safetensors\")\nand pass it as --inputs in.safetensors; or use random inputs, with --input 'f32[8,128]' for each argument in order";
  return o.str();
}

std::vector<c10::IValue> bind_arguments(const c10::FunctionSchema& schema, const std::vector<at::Tensor>& tensors, size_t* given) {
  std::vector<c10::IValue> values;
  const auto& args = schema.arguments();
  size_t next = 0;
  auto wrong_count = [&]() {
    std::ostringstream o;
    o << "forward takes (";
    for (size_t i = 1; i < args.size(); i++) o << (i > 1 ? ", " : "") << args[i].name() << ": " << args[i].type()->annotation_str() << (args[i].default_value() ? " = default" : "");
    o << "), but " << tensors.size() << " inputs were given";
    return Failure(o.str(), inputs_help(args));
  };
  for (size_t i = 1; i < args.size(); i++) {
    if (next >= tensors.size()) {
      if (args[i].default_value()) values.push_back(*args[i].default_value());
      else if (args[i].type()->kind() == TypeKind::OptionalType) values.push_back(c10::IValue());
      else throw wrong_count();
      continue;
    }
    if (given) *given = i;
    try {
      values.push_back(bind_one(args[i], args[i].type(), tensors, next, i + 1 == args.size()));
    } catch (const std::out_of_range&) {
      throw wrong_count();
    }
  }
  if (next != tensors.size()) throw wrong_count();
  return values;
}

}  // namespace kiln

extern "C" {

kiln::Archive* kt_open(const char* path, char** error) {
  return kiln::guarded(error, (kiln::Archive*)nullptr, [&] { return kiln::load(path).release(); });
}
void kt_close(kiln::Archive* a) { delete a; }

// JSON of forward's arguments. The archive owns the text until the next call.
const char* kt_arguments(kiln::Archive* a, char** error) {
  return kiln::guarded(error, (const char*)nullptr, [&] {
    a->text = kiln::dump_arguments(a->module.get_method("forward").function().getSchema());
    return a->text.c_str();
  });
}

void kt_free_text(char* s) { free(s); }

}  // extern "C"
