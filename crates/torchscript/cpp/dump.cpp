// Writes calls, values and problems as JSON, which src/raw.rs and src/error.rs read.
#include "shim.h"

#include <torch/csrc/jit/frontend/source_range.h>

#include <cmath>
#include <regex>
#include <sstream>

namespace kiln {
using namespace torch::jit;

namespace {

template <class V, class F>
void write_list(std::ostream& o, const V& items, F each) {
  o << '[';
  bool first = true;
  for (const auto& e : items) {
    if (!first) o << ',';
    first = false;
    each(e);
  }
  o << ']';
}

void write_double(std::ostream& o, double d) {
  if (std::isnan(d)) o << "\"nan\"";
  else if (std::isinf(d)) o << (d > 0 ? "\"inf\"" : "\"-inf\"");
  else {
    char b[40];
    snprintf(b, sizeof b, "%.17g", d);
    o << b;
  }
}

void write_ints(std::ostream& o, at::IntArrayRef v) {
  write_list(o, v, [&](int64_t e) { o << e; });
}

void write_arg(std::ostream& o, const Arg& a) {
  if (a.id >= 0) o << "{\"value\":" << a.id << '}';
  else if (a.list) {
    o << "{\"list\":";
    write_list(o, a.items, [&](const Arg& e) { write_arg(o, e); });
    o << '}';
  } else write_plain(o, a.plain);
}

void write_field(std::ostream& o, const char* name, const std::string& s) {
  if (s.empty()) return;
  o << ",\"" << name << "\":";
  write_string(o, s);
}

void write_value(std::ostream& o, const Archive& a, const ValueInfo& v) {
  o << "{\"dtype\":\"" << dtype_name(v.dtype) << "\",\"shape\":";
  write_ints(o, v.sizes);
  const at::Tensor& t = v.constant.defined() ? v.constant : v.folded;
  if (t.defined()) {
    o << (v.constant.defined() ? ",\"constant\":true" : ",\"folded\":true");
    if (t.numel() == 1 && !t.is_complex()) {
      o << ",\"scalar\":";
      write_plain(o, c10::IValue(t.item()));
    }
    if (v.constant.defined() && t.numel()) {
      auto it = a.names.find(t.data_ptr());
      if (it != a.names.end()) write_field(o, "name", it->second);
    }
  }
  o << '}';
}

}  // namespace

void write_string(std::ostream& o, const std::string& s) {
  o << '"';
  for (unsigned char c : s) {
    if (c == '"' || c == '\\') o << '\\' << c;
    else if (c < 0x20) {
      char b[8];
      snprintf(b, sizeof b, "\\u%04x", c);
      o << b;
    } else o << c;
  }
  o << '"';
}

// Externally tagged, as serde expects enums.
void write_plain(std::ostream& o, const c10::IValue& v) {
  if (v.isNone() || (v.isTensor() && !v.toTensor().defined())) o << "\"none\"";
  else if (v.isInt()) o << "{\"int\":" << v.toInt() << '}';
  else if (v.isDouble()) {
    o << "{\"float\":";
    write_double(o, v.toDouble());
    o << '}';
  } else if (v.isBool()) o << "{\"bool\":" << (v.toBool() ? "true" : "false") << '}';
  else if (v.isString()) {
    o << "{\"str\":";
    write_string(o, v.toStringRef());
    o << '}';
  } else if (v.isDevice()) o << "{\"device\":\"" << v.toDevice().str() << "\"}";
  else if (v.isIntList()) {
    o << "{\"ints\":";
    write_list(o, v.toIntVector(), [&](int64_t e) { o << e; });
    o << '}';
  } else if (v.isList() || v.isTuple()) {
    std::vector<c10::IValue> items;
    if (v.isTuple()) items = v.toTupleRef().elements().vec();
    else for (const c10::IValue& e : v.toListRef()) items.push_back(e);
    o << "{\"list\":";
    write_list(o, items, [&](const c10::IValue& e) { write_plain(o, e); });
    o << '}';
  } else {
    o << "{\"opaque\":";
    write_string(o, v.tagKind());
    o << '}';
  }
}

const char* dtype_name(at::ScalarType t) {
  switch (t) {
    case at::kDouble: return "f64";
    case at::kFloat: return "f32";
    case at::kHalf: return "f16";
    case at::kBFloat16: return "bf16";
    case at::kFloat8_e4m3fn: return "f8e4m3";
    case at::kFloat8_e5m2: return "f8e5m2";
    case at::kLong: return "i64";
    case at::kInt: return "i32";
    case at::kShort: return "i16";
    case at::kChar: return "i8";
    case at::kByte: return "u8";
    case at::kBool: return "bool";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: return c10::toString(t);
  }
}

namespace {

// Appends `file:line` of a range. The source text of a traced node is its whole Python stack, innermost frame first, one
// `file(line): function` per line.
void add_frames(SourceRange range, std::string& frames) {
  if (auto original = range.findSourceRangeThatGenerated()) range = *original;  // the Python source behind the archive's generated code
  static const std::regex frame("(.+)\\(([0-9]+)\\): .*");
  std::smatch match;
  if (range.source()) {
    std::istringstream text(range.source()->text_str().str());
    bool stack = false;
    for (std::string line; std::getline(text, line) && std::regex_match(line, match, frame); stack = true)
      frames += match[1].str() + ":" + match[2].str() + "\n";
    if (stack) return;
  }
  if (auto at = range.file_line_col()) frames += std::get<0>(*at) + ":" + std::to_string(std::get<1>(*at)) + "\n";
}

}  // namespace

std::string source_of(const Node* n) {
  std::string frames;
  add_frames(n->sourceRange(), frames);
  if (auto stack = n->callstack()) {
    auto calls = (*stack)->vec();
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) add_frames(std::get<1>(*call), frames);
  }
  return frames;
}

std::string module_of(const Node* n) {
  std::string path;
  auto stack = n->callstack();
  if (!stack) return path;
  for (auto& call : (*stack)->vec()) {
    auto& module = std::get<2>(call);
    if (!module || module->instance_name() == "SELF" || module->instance_name() == "INSTANCE_NAME_UNKNOWN") continue;
    path += (path.empty() ? "" : ".") + module->instance_name();
  }
  return path;
}

std::string dump_problems(const std::vector<Problem>& problems) {
  std::ostringstream o;
  o << "{\"errors\":";
  write_list(o, problems, [&](const Problem& p) {
    o << "{\"message\":";
    write_string(o, p.message);
    write_field(o, "source", p.source);
    write_field(o, "module", p.module);
    write_field(o, "help", p.help);
    o << '}';
  });
  o << '}';
  return o.str();
}

std::string dump_arguments(const c10::FunctionSchema& schema) {
  std::ostringstream o;
  std::vector<c10::Argument> args(schema.arguments().begin() + 1, schema.arguments().end());
  write_list(o, args, [&](const c10::Argument& a) {
    o << "{\"name\":";
    write_string(o, a.name());
    o << ",\"type\":";
    write_string(o, a.type()->annotation_str());
    o << ",\"optional\":" << (a.default_value() || a.type()->kind() == TypeKind::OptionalType ? "true" : "false") << '}';
  });
  return o.str();
}

std::string dump_result(const Archive& a) {
  const Specialised& r = a.result;
  std::ostringstream o;
  o << "{\"inputs\":";
  write_list(o, r.inputs, [&](const Input& i) {
    o << "{\"name\":";
    write_string(o, i.name);
    if (i.id >= 0) o << ",\"value\":" << i.id;
    else {
      o << ",\"scalar\":";
      write_plain(o, i.scalar);
    }
    o << '}';
  });
  o << ",\"values\":";
  write_list(o, r.values, [&](const ValueInfo& v) { o << '\n'; write_value(o, a, v); });
  o << ",\"calls\":";
  write_list(o, r.calls, [&](const Call& c) {
    o << "\n{\"name\":";
    write_string(o, c.name);
    o << ",\"overload\":";
    write_string(o, c.overload);
    o << ",\"args\":";
    write_list(o, c.args, [&](const Arg& x) { write_arg(o, x); });
    o << ",\"outs\":";
    write_list(o, c.outs, [&](int id) { o << id; });
    write_field(o, "source", c.source);
    write_field(o, "module", c.module);
    o << '}';
  });
  o << ",\"outputs\":";
  write_list(o, r.outputs, [&](int id) { o << id; });
  o << ",\"structure\":" << r.structure << '}';
  return o.str();
}

}  // namespace kiln
