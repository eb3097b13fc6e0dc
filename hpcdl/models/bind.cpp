#include "hpcdl/models/bind.h"

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/quant/int4_names.h"

namespace hpcdl::models {

std::string Binder::spelled(const std::string& name) const {
  if (files_.contains(name)) return name;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && files_.contains(name.substr(prefix.size()))) return name.substr(prefix.size());
  return name;
}

View Binder::find(const std::string& name, const Shape& expected) const {
  const View v = files_.at(spelled(name));
  require(v.shape() == expected, "model", "{}: config.json asks for {} of shape {}, the file holds {}",
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

void Binder::copy(const std::string& name, const Tensor& to, const nn::Part& part) const {
  if (!part) return convert_elements(to, find(name, to.shape()));
  const View from = find(name, part.whole);
  for_each_run(part, [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    const auto run = [&](const View& v, std::int64_t first) {
      return Tensor(const_cast<std::byte*>(v.ptr<std::byte>()) + first * dtype_bytes(v.dtype()), {{count}, v.dtype()},
                    v.device());
    };
    convert_elements(run(to, at), run(from, whole));
  });
}

bool Binder::bind_int4(const std::string& name, nn::Weight& weight) const {
  const std::string packed = spelled(int4::packed_name(name));
  if (!files_.contains(packed)) return false;
  require(quant_.has_value(), "model", "{}: {} is there, but config.json has no quantization_config",
          files_.path().string(), packed);
  const auto bind = [&](const std::string& tensor) {
    const View v = files_.at(spelled(tensor));
    return Tensor(const_cast<void*>(v.data()), v.spec());
  };
  weight.packed = bind(int4::packed_name(name));
  weight.scale = bind(int4::scale_name(name));
  if (!quant_->symmetric) weight.offset = bind(int4::offset_name(name));
  require(weight.offset || !files_.contains(spelled(int4::offset_name(name))), "model",
          "{}: {} is there, but quantization_config in config.json says symmetric", files_.path().string(),
          int4::offset_name(name));
  weight.name = name;
  return true;
}

}  // namespace hpcdl::models
