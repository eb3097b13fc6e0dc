#include "hpcdl/models/bind.h"

#include <set>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/int4_linear/int4_layout.h"
#include "hpcdl/quant/int4_names.h"

namespace hpcdl::models {
namespace {

/// Gives "model.layers.3." for "model.layers.3.mlp.up_proj.weight"; empty outside of layers.
std::string layer_of(const std::string& name) {
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && name[end] == '.') return name.substr(0, end + 1);
  }
  return {};
}

}  // namespace

std::string Binder::spelled(const std::string& name) const {
  if (files_.contains(name) || !name.starts_with(decoder_.prefix)) return name;
  const std::string bare = name.substr(decoder_.prefix.size());
  return files_.contains(bare) ? bare : name;
}

View Binder::find(const std::string& name, const Shape& expected) const {
  const View v = files_.at(spelled(name));
  require(v.shape() == expected, "model", "{}: config.json asks for {} of shape {}, but the file has {}",
          files_.path().string(), name, to_string(expected), to_string(v.spec()));
  require(is_float(v.dtype()), "model", "{}: {} must hold floating-point numbers, the file holds {}",
          files_.path().string(), name, to_string(v.spec()));
  return v;
}

Tensor Binder::view(const std::string& name, const Spec& expected, std::vector<Buffer>& converted) const {
  const View v = find(name, expected.shape);
  if (v.dtype() != DType::f64) return Tensor(const_cast<void*>(v.data()), v.spec());
  const Spec spec{v.shape(), DType::f32};
  converted.emplace_back(spec.bytes());
  const Tensor t(converted.back().data(), spec);
  convert_elements(t, v);
  return t;
}

void Binder::copy(const std::string& name, const Tensor& to, const Part& part) const {
  if (part.all()) return convert_elements(to, find(name, to.shape()));
  const View from = find(name, part.whole);
  for_each_run(part, [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    const auto run = [&](const View& v, std::int64_t first) {
      return Tensor(const_cast<std::byte*>(v.ptr<std::byte>()) + first * dtype_bytes(v.dtype()), {{count}, v.dtype()},
                    v.device());
    };
    convert_elements(run(to, at), run(from, whole));
  });
}

bool Binder::bind_int4(const std::string& name, nn::Weight& weight, StateTable& table) const {
  const std::string packed = spelled(int4::packed_name(name));
  if (!files_.contains(packed)) return false;
  require(quant_.has_value(), "model", "{}: {} is there, but config.json has no quantization_config",
          files_.path().string(), packed);
  weight.name = name;
  const auto add = [&](const char* part, const std::string& tensor) {
    const View v = files_.at(spelled(tensor));
    table.add_frozen(weight, part, Tensor(const_cast<void*>(v.data()), v.spec()));
    return v.spec();
  };
  weight.packed = add(".packed", int4::packed_name(name));
  const auto fits = [&](std::int64_t n, std::int64_t k) { return weight.packed == int4::packed_spec(n, k); };
  const Shape& expected = weight.spec.shape;  // (out, in), or transposed
  require(expected[0] > 0 && expected[1] > 0 && (fits(expected[0], expected[1]) || fits(expected[1], expected[0])),
          "model", "{}: config.json asks for {} of shape {}, but the file has {} {}, two values in a byte",
          files_.path().string(), name, to_string(expected), packed, to_string(weight.packed));
  weight.scale = add(".scale", int4::scale_name(name));
  if (!quant_->symmetric) weight.offset = add(".offset", int4::offset_name(name));
  require(weight.offset || !files_.contains(spelled(int4::offset_name(name))), "model",
          "{}: {} is there, but quantization_config in config.json says symmetric", files_.path().string(),
          int4::offset_name(name));
  return true;
}

void Binder::require_whole_layers(const std::vector<std::string>& read) const {
  std::set<std::string> names, layers;
  for (const auto& name : read) {
    const auto& file_name = *names.insert(spelled(name)).first;
    if (auto layer = layer_of(file_name); !layer.empty()) layers.insert(std::move(layer));
  }
  std::vector<std::string_view> others;
  for (const auto& t : files_.tensors()) {
    const bool counts = (t.name.ends_with(".weight") || t.name.ends_with(".bias")) && !decoder_.is_no_parameter(t.name);
    if (counts && !names.contains(t.name) && layers.contains(layer_of(t.name))) others.push_back(t.name);
  }
  require(others.empty(), "model",
          "{}: {}{} belongs to a layer, but config.json describes layers without it, which would give other results. "
          "Expected the config.json that was saved with these files{}",
          files_.path().string(), others.empty() ? "" : others[0],
          others.size() > 1 ? fmt::format(" (and {} more tensors)", others.size() - 1) : "",
          !others.empty() && others[0].ends_with("bias") ? ": \"attention_bias\" or \"mlp_bias\" may be missing in it"
                                                         : "");
}

}  // namespace hpcdl::models
