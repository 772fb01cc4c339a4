// Execution by libtorch: whole modules as the reference, and single operators by schema name for fallback nodes.
#include "shim.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace kiln {
using namespace torch::jit;

// A loaded module with its arguments, for repeated runs.
struct Session {
  Module module;
  std::vector<c10::IValue> arguments;
  at::Device device = at::kCPU;
  std::vector<at::Tensor> outputs;
};

namespace {

at::Device device_of(int index) { return index < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, (c10::DeviceIndex)index); }

void synchronise(at::Device d) {
  if (d.is_cuda()) c10::impl::VirtualGuardImpl(d.type()).synchronizeDevice(d.index());
}

void require_device(at::Device d) {
  if (d.is_cuda() && !c10::impl::hasDeviceGuardImpl(d.type()))
    throw Failure("this libtorch has no CUDA backend, but " + d.str() + " was requested", "point LIBTORCH at a CUDA build of torch, or use --device cpu");
}

void flatten(const c10::IValue& v, std::vector<at::Tensor>& out) {
  if (v.isTensor()) { if (v.toTensor().defined()) out.push_back(v.toTensor()); }
  else if (v.isTuple()) for (auto& e : v.toTupleRef().elements()) flatten(e, out);
  else if (v.isList()) for (const c10::IValue& e : v.toListRef()) flatten(e, out);
  else if (v.isGenericDict()) for (auto& e : v.toGenericDict()) flatten(e.value(), out);
}

// Converts `v` to an argument of type `t`: integers become floats, generic lists get their element type, and a single number given for
// a list of `n` is repeated.
c10::IValue coerce(const c10::IValue& v, const TypePtr& t, int32_t n = 1) {
  switch (t->kind()) {
    case TypeKind::OptionalType: return v.isNone() ? v : coerce(v, t->expectRef<OptionalType>().getElementType(), n);
    case TypeKind::FloatType: return v.isInt() ? c10::IValue((double)v.toInt()) : v;
    case TypeKind::ListType: {
      auto elem = t->expectRef<ListType>().getElementType();
      c10::impl::GenericList list(elem);
      if (!v.isList()) {
        for (int32_t i = 0; i < n; i++) list.push_back(coerce(v, elem));
        return list;
      }
      for (const c10::IValue& e : v.toListRef()) list.push_back(coerce(e, elem));
      return list;
    }
    default: return v;
  }
}

void call_schema(const c10::FunctionSchema& schema, Stack& stack, const std::function<void(Stack&)>& run) {
  const auto& args = schema.arguments();
  for (size_t i = 0; i < stack.size() && i < args.size(); i++) stack[i] = coerce(stack[i], args[i].type(), args[i].N().value_or(1));
  // A Scalar argument may be a bool, which checkAndNormalizeInputs does not accept as a number.
  std::vector<size_t> bools;
  auto scalar = [](TypePtr t) { if (auto o = t->cast<OptionalType>()) t = o->getElementType(); return t->kind() == TypeKind::NumberType; };
  for (size_t i = 0; i < stack.size() && i < args.size(); i++)
    if (stack[i].isBool() && scalar(args[i].type())) { bools.push_back(i); stack[i] = (int64_t)stack[i].toBool(); }
  schema.checkAndNormalizeInputs(stack, {});  // throws if the count or types do not fit the schema; adds defaults
  for (size_t i : bools) stack[i] = stack[i].toInt() != 0;
  run(stack);
}

using Handle = std::optional<c10::OperatorHandle>;

// Whether `other` is the out= variant of `schema`: the same arguments, then one output tensor per result.
bool writes_results_of(const c10::FunctionSchema& schema, const c10::FunctionSchema& other) {
  const auto &args = schema.arguments(), &more = other.arguments();
  const auto& results = schema.returns();
  if (more.size() != args.size() + results.size()) return false;
  for (size_t i = 0; i < args.size(); i++)
    if (args[i].name() != more[i].name() || *args[i].type() != *more[i].type()) return false;
  for (size_t i = args.size(); i < more.size(); i++)
    if (!more[i].is_out() || more[i].type()->kind() != TypeKind::TensorType) return false;
  return std::all_of(results.begin(), results.end(), [](auto& r) { return r.type()->kind() == TypeKind::TensorType; });
}

// The out= overload of an operator, if there is one. Cached.
Handle writing_form(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, Handle> known;
  std::lock_guard<std::mutex> lock(mutex);
  const auto& name = op.operator_name();
  auto [at, fresh] = known.try_emplace(name);
  if (!fresh) return at->second;
  for (auto& other : c10::Dispatcher::singleton().getAllOpNames()) {
    if (other.name != name.name) continue;
    auto handle = c10::Dispatcher::singleton().findSchema(other);
    if (handle && writes_results_of(op.schema(), handle->schema())) at->second = handle;
  }
  return at->second;
}

// Calls `op` through its out= overload, writing to `into`, if that exists and accepts the call; otherwise calls `op` itself.
void call_operator(const c10::OperatorHandle& op, Stack& stack, const std::vector<at::Tensor>& into) {
  if (!into.empty() && into.size() == op.schema().returns().size()) {
    if (Handle form = writing_form(op)) {
      Stack attempt = stack;
      try {
        const auto& args = op.schema().arguments();
        for (size_t i = attempt.size(); i < args.size(); i++) attempt.push_back(args[i].default_value().value_or(c10::IValue()));
        for (auto& t : into) attempt.push_back(t);
        call_schema(form->schema(), attempt, [&](Stack& s) { form->callBoxed(s); });
        stack = std::move(attempt);
        return;
      } catch (const std::exception&) {}
    }
  }
  call_schema(op.schema(), stack, [&](Stack& s) { op.callBoxed(s); });
}

}  // namespace
}  // namespace kiln

extern "C" {

using kiln::Session;
using c10::IValue;

Session* kt_session(const char* path, int device, at::Tensor** tensors, int n, char** error) {
  return kiln::guarded(error, (Session*)nullptr, [&] {
    at::NoGradGuard no_grad;
    auto s = std::make_unique<Session>();
    s->device = kiln::device_of(device);
    kiln::require_device(s->device);
    s->module = torch::jit::load(path, s->device);
    s->module.eval();
    std::vector<at::Tensor> list;
    for (int i = 0; i < n; i++) list.push_back(tensors[i]->dim() == 0 ? *tensors[i] : tensors[i]->to(s->device));
    s->arguments = kiln::bind_arguments(s->module.get_method("forward").function().getSchema(), list);
    return s.release();
  });
}
void kt_session_close(Session* s) { delete s; }

// Runs forward once and waits for the device. Returns the number of flattened output tensors, or -1.
int kt_session_run(Session* s, char** error) {
  return kiln::guarded(error, -1, [&] {
    at::NoGradGuard no_grad;
    auto result = s->module.forward(s->arguments);
    kiln::synchronise(s->device);
    s->outputs.clear();
    kiln::flatten(result, s->outputs);
    return (int)s->outputs.size();
  });
}
// Returns a dense host copy of output i, owned by the caller.
at::Tensor* kt_session_output(Session* s, int i, char** error) {
  return kiln::guarded(error, (at::Tensor*)nullptr, [&] { return new at::Tensor(s->outputs.at(i).cpu().contiguous()); });
}

void kt_set_threads(int n) { at::set_num_threads(n); }

// Calls an operator. Results that are lists or tuples are flattened. Returns the number of results, or -1.
// `into`: empty, or memory for all results, which the operator writes directly if it has an out= overload.
int kt_call(const char* name, const char* overload, IValue** ins, int n, at::Tensor** into, int n_into, int device, at::Tensor** outs, int most, char** error) {
  return kiln::guarded(error, -1, [&] {
    at::NoGradGuard no_grad;
    const at::Device d = kiln::device_of(device);
    kiln::require_device(d);
    torch::jit::Stack stack;
    for (int i = 0; i < n; i++) stack.push_back(ins[i]->isDevice() ? IValue(d) : *ins[i]);
    auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!op) throw kiln::Failure(std::string("libtorch has no operator ") + name + "." + overload, "use torch 2.11");
    std::vector<at::Tensor> results;
    for (int i = 0; i < n_into; i++) results.push_back(*into[i]);
    kiln::call_operator(*op, stack, results);
    results.clear();
    for (auto& v : stack) kiln::flatten(v, results);
    kiln::synchronise(d);
    if ((int)results.size() > most) throw kiln::Failure(std::string(name) + " gave more results than expected");
    for (size_t i = 0; i < results.size(); i++) outs[i] = new at::Tensor(results[i]);
    return (int)results.size();
  });
}

// A non-owning tensor over the caller's memory. `dtype` is torch's number; device -1 is the host.
at::Tensor* kt_tensor(void* data, int dtype, const int64_t* sizes, int rank, int device, char** error) {
  return kiln::guarded(error, (at::Tensor*)nullptr, [&] {
    const at::Device d = kiln::device_of(device);
    kiln::require_device(d);
    at::IntArrayRef shape(sizes, rank);
    auto options = at::TensorOptions().dtype((at::ScalarType)dtype).device(d);
    // An empty tensor needs no memory.
    if (c10::multiply_integers(shape) == 0) return new at::Tensor(at::empty(shape, options));
    return new at::Tensor(at::from_blob(data, shape, options));
  });
}
// Returns dtype number * 100 + rank, and writes the first 16 sizes.
int kt_tensor_type(const at::Tensor* t, int64_t* sizes) {
  for (int64_t i = 0; i < t->dim() && i < 16; i++) sizes[i] = t->size(i);
  return (int)t->scalar_type() * 100 + (int)t->dim();
}
// Copies src into dst (same shape and dtype, any devices); a no-op if they share memory.
int kt_tensor_copy(at::Tensor* dst, const at::Tensor* src, char** error) {
  return kiln::guarded(error, -1, [&] {
    if (dst->sizes() != src->sizes() || dst->scalar_type() != src->scalar_type())
      throw kiln::Failure("a result is " + kiln::type_text(*src) + ", but a buffer for " + kiln::type_text(*dst) + " was given");
    if (dst->is_same(*src) || (src->is_contiguous() && dst->const_data_ptr() == src->const_data_ptr())) return 0;
    dst->copy_(*src);
    kiln::synchronise(dst->device());
    return 0;
  });
}
const void* kt_tensor_data(const at::Tensor* t) { return t->const_data_ptr(); }
void kt_tensor_free(at::Tensor* t) { delete t; }

IValue* kt_iv_tensor(const at::Tensor* t) { return new IValue(*t); }
IValue* kt_iv_none() { return new IValue(); }
IValue* kt_iv_int(int64_t v) { return new IValue(v); }
IValue* kt_iv_float(double v) { return new IValue(v); }
IValue* kt_iv_bool(int v) { return new IValue(v != 0); }
IValue* kt_iv_str(const char* v) { return new IValue(std::string(v)); }
IValue* kt_iv_device() { return new IValue(at::Device(at::kCPU)); }
// A generic list; `coerce` gives it its element type when an operator takes it.
IValue* kt_iv_list(IValue** items, int n) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (int i = 0; i < n; i++) list.push_back(*items[i]);
  return new IValue(list);
}
void kt_iv_free(IValue* v) { delete v; }

}  // extern "C"
