// Refuses calls that turn an input's data into Python numbers or into the shape of a result. A compiled graph is the same for every
// input, so it cannot follow either. Each refusal names the line in the model's source and what to write instead.
#include "specialise.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <map>

namespace kiln {
using namespace torch::jit;

namespace {

const char* kDataHelp =
    "a compiled graph is the same for every input: compute the choice with tensors (torch.where, masks), or pass the number as an argument of forward";
const char* kMaskHelp = "keep the shape fixed: torch.where or masked_fill instead of selecting by a mask; a mean over what it selects is (x * mask).sum() / mask.sum()";
const char* kPlacesHelp = "use the mask itself (torch.where(mask, a, b), mask.sum()), or torch.nonzero_static(x, size=n)";
const char* kUniqueHelp = "compute this outside of the model and pass it in as an input";
const char* kPackHelp = "run the module on the padded batch, without pack_padded_sequence, and mask its outputs by the lengths";

// Operators whose result shape depends on the contents of their operands.
const std::map<std::string, const char*> shape_from_data = {
    {"aten::nonzero", kPlacesHelp},
    {"aten::nonzero_numpy", kPlacesHelp},
    {"aten::argwhere", kPlacesHelp},
    {"aten::masked_select", kMaskHelp},
    {"aten::unique", kUniqueHelp},
    {"aten::_unique", kUniqueHelp},
    {"aten::_unique2", kUniqueHelp},
    {"aten::unique_dim", kUniqueHelp},
    {"aten::unique_consecutive", kUniqueHelp},
    {"aten::unique_dim_consecutive", kUniqueHelp},
    {"aten::bincount", "count with F.one_hot(x, n).sum(0), whose size n is fixed"},
    {"aten::_pack_padded_sequence", kPackHelp},
    {"aten::_pad_packed_sequence", kPackHelp},
};

bool is_tensor(const SymP& s) { return s->value.isTensor() && s->value.toTensor().defined(); }

bool has_bool_index(const SymP& indices) {
  for (auto& i : indices->items)
    if (is_tensor(i) && i->data && (i->value.toTensor().scalar_type() == at::kBool || i->value.toTensor().scalar_type() == at::kByte)) return true;
  return false;
}

struct Reason {
  std::string what, help;
};

// Why the shape of a result of `n` depends on data, if it does. Some operators do so only for some arguments.
std::optional<Reason> shape_reason(Node* n, const std::vector<SymP>& ins) {
  const std::string name = n->kind().toQualString();
  const std::string plain = "`" + name + "`";
  auto given = [&](size_t i) { return i < ins.size() && !ins[i]->value.isNone(); };
  if (auto it = shape_from_data.find(name); it != shape_from_data.end()) return Reason{plain, it->second};
  if (name == "aten::where") {
    if (ins.size() == 1) return Reason{plain + " with a condition alone", kPlacesHelp};
    return {};
  }
  if (name == "aten::index" || name == "aten::_unsafe_index") {
    if (has_bool_index(ins[1])) return Reason{plain + " with a boolean mask", kMaskHelp};
    return {};
  }
  if (name == "aten::one_hot") {
    if (given(1) && ins[1]->value.isInt() && ins[1]->value.toInt() >= 0) return {};
    return Reason{plain + " without a number of classes", "say how many classes there are: F.one_hot(x, num_classes=10)"};
  }
  if (name == "aten::repeat_interleave") {
    const bool from_list = n->schema().overload_name() == "Tensor";  // (repeats, output_size?)
    const SymP& repeats = ins[from_list ? 0 : 1];
    // A single repeat count is handled elsewhere as a number read; with output_size libtorch checks the sum at every run.
    if (!is_tensor(repeats) || !repeats->data || given(from_list ? 1 : 3)) return {};
    return Reason{plain + " by a tensor", "repeat every element equally often (by an int), or give output_size"};
  }
  if (name == "aten::tensor_split") {
    if (is_tensor(ins[1]) && ins[1]->data) return Reason{plain + " at places given by a tensor", "split at fixed places: a list of ints"};
    return {};
  }
  // Tagged dynamic_output_shape, but only for auxiliary results such as status codes.
  if (name == "aten::_ctc_loss" || name == "aten::linalg_lstsq" || !n->maybeSchema()) return {};
  auto op = c10::Dispatcher::singleton().findSchema({n->schema().name(), n->schema().overload_name()});
  if (op && op->hasTag(at::Tag::dynamic_output_shape)) return Reason{plain, kUniqueHelp};
  return {};
}

}  // namespace

void Specialiser::check_data_reads(Node* n, const std::vector<SymP>& ins, const Stack& results, bool data) {
  if (!data) return;
  for (auto& v : results)
    if (v.isInt() || v.isBool() || v.isDouble() || v.isIntList() || v.isDoubleList() || v.isBoolList())
      return refuse(n, std::string("reads a number out of the input's data (`") + n->kind().toQualString() + "`)", kDataHelp);
  if (auto reason = shape_reason(n, ins)) refuse(n, "the shape of a result depends on the input's data (" + reason->what + ")", reason->help);
}

// Refuses results that are not dense tensors. Stops the import at once, since nothing after them can be followed.
void Specialiser::check_layout(Node* n, const Stack& results) {
  std::vector<at::Tensor> tensors;
  for (auto& v : results) {
    if (v.isTensor() && v.toTensor().defined()) tensors.push_back(v.toTensor());
    if (v.isTensorList()) for (const at::Tensor& t : v.toTensorVector()) tensors.push_back(t);
  }
  for (auto& t : tensors) {
    const std::string name = n->kind().toQualString();
    if (t.is_nested()) {
      refuse(n, "makes a nested tensor (`" + name + "`): the lengths of its rows depend on the input's data", "build nn.TransformerEncoder with enable_nested_tensor=False (inside nn.Transformer: transformer.encoder.use_nested_tensor = False); elsewhere pad rows to one length and pass a mask");
    } else if (t.layout() != at::kStrided) {
      refuse(n, "`" + name + "` gives a tensor of layout " + c10::str(t.layout()) + ", which a graph cannot represent", "use dense tensors (to_dense) inside the model");
    } else {
      continue;
    }
    throw Failure(problems);
  }
}

}  // namespace kiln
