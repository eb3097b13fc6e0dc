#include "hpcdl/models/bind.h"

#include <algorithm>
#include <set>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/quant/codecs.h"

namespace hpcdl::models {
namespace {

/// Bytes of a mapped file that are in memory for a copy at the same time.
constexpr std::int64_t kReadAtOnce = std::int64_t{8} << 20;

/// Gives "model.layers.3." for "model.layers.3.mlp.up_proj.weight"; empty outside of layers.
std::string layer_of(const std::string& name) {
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && name[end] == '.') return name.substr(0, end + 1);
  }
  return {};
}

/// What this rank has of a quantised matrix; absent parts if that is everything.
nn::Codec::Parts<OwnedTensor> take_part(const nn::Weight& w, const nn::Codec::Parts<View>& whole, bool transposed) {
  if (w.part.all()) return {};
  require(
      w.codec->take != nullptr, "shard",
      "{}: matrices of format {} cannot be divided among ranks: convert the model to another format, or use one rank",
      w.name, w.codec->name);
  nn::MatrixPart part;
  for (const auto& box : w.part.boxes) {
    const auto along = [&](int dim) { return Interval{box.begin[dim], box.begin[dim] + box.extent[dim]}; };
    part.outputs.push_back(along(transposed ? 1 : 0)), part.inputs = along(transposed ? 0 : 1);
  }
  return w.codec->take(whole, part, w.name);
}

}  // namespace

std::string Binder::spelled(const std::string& name) const {
  if (files_.contains(name) || !name.starts_with(decoder_.prefix)) return name;
  const std::string bare = name.substr(decoder_.prefix.size());
  return files_.contains(bare) ? bare : name;
}

bool Binder::transposed(const std::string& name) const {
  return decoder_.layout == nn::Layout::in_out && !layer_of(name).empty();
}

View Binder::find(const std::string& name, const Shape& expected) const {
  const View v = files_.at(spelled(name));
  require(v.shape() == expected, "model", "{}: config.json asks for {} of shape {}, but the file has {}",
          files_.path().string(), name, to_string(expected), to_string(v.spec()));
  require(is_float(v.dtype()), "model", "{}: {} must hold floating-point numbers, the file holds {}",
          files_.path().string(), name, to_string(v.spec()));
  return v;
}

Tensor Binder::view(const std::string& name, const Spec& expected, const ComputeType& compute,
                    std::vector<Buffer>& own) const {
  const View v = find(name, expected.shape);
  if (v && v.dtype() != DType::f64) return converted(Tensor(const_cast<void*>(v.data()), v.spec()), compute, own);
  const Spec spec{v.shape(), compute.dtype != DType::none ? compute.dtype : v ? DType::f32 : v.dtype()};
  own.emplace_back(spec.bytes());
  const Tensor t(own.back().data(), spec);
  files_.read(spelled(name), t, compute.pool);
  return t;
}

Tensor Binder::part(const nn::Param& p, const ComputeType& compute, std::vector<Buffer>& own) const {
  if (p.part.all()) return view(p.name, p.spec, compute, own);
  const View whole = find(p.name, p.part.whole);
  if (!whole) {
    const Spec decoded{p.part.local, compute.dtype != DType::none ? compute.dtype : whole.dtype()};
    own.emplace_back(decoded.bytes());
    const Tensor t(own.back().data(), decoded);
    copy(p.name, t, p.part, compute.pool);
    return t;
  }
  std::int64_t runs = 0, first = 0;
  for_each_run(p.part, [&](std::int64_t, std::int64_t at, std::int64_t) { first = runs++ == 0 ? at : first; });
  const Spec spec{p.part.local, whole.dtype()};
  if (runs == 1 && whole.dtype() != DType::f64)
    return converted(Tensor(const_cast<std::byte*>(whole.ptr<std::byte>()) + first * dtype_bytes(whole.dtype()), spec),
                     compute, own);
  const Spec mine{spec.shape, whole.dtype() == DType::f64 ? DType::f32 : whole.dtype()};
  own.emplace_back(mine.bytes());
  const Tensor t(own.back().data(), mine);
  copy(p.name, t, p.part);
  drop(whole);
  return converted(t, compute, own);
}

void Binder::drop(const std::byte* begin, std::int64_t bytes) const {
  for (const auto* file : files_.files()) {
    const auto at = begin - file->data();
    if (at >= 0 && at < file->size()) file->drop(at, bytes);
  }
}

void Binder::copy(const std::string& name, const Tensor& to, const Part& part, Pool* pool) const {
  View from = find(name, part.all() ? to.shape() : part.whole);
  OwnedTensor decoded;
  if (!from) {
    if (part.all()) return files_.read(spelled(name), to, pool);
    decoded = OwnedTensor({part.whole, DType::f32});
    files_.read(spelled(name), decoded.tensor, pool);
    from = decoded.tensor;
  }
  const auto most = kReadAtOnce / dtype_bytes(from.dtype());
  const std::byte *first_read = nullptr, *read = nullptr;
  const auto copy_run = [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += most) {
      const auto window = [&](const View& v, std::int64_t first) {
        return Tensor(const_cast<std::byte*>(v.ptr<std::byte>()) + (first + i) * dtype_bytes(v.dtype()),
                      {{std::min(most, count - i)}, v.dtype()}, v.device());
      };
      const Tensor piece = window(from, whole);
      convert_elements(window(to, at), piece);
      const auto* begin = piece.ptr<std::byte>();
      // Runs may be shorter than a page: what lies between two of them is released, too.
      if (!first_read || begin < first_read) first_read = begin;
      read = begin + piece.bytes();
      if (read - first_read < kReadAtOnce) continue;
      if (!decoded.tensor) drop(first_read, read - first_read);
      first_read = nullptr;
    }
  };
  if (part.all()) copy_run(0, 0, to.size());
  else for_each_run(part, copy_run);
  if (first_read && !decoded.tensor) drop(first_read, read - first_read);
}

View Binder::find_part(const std::string& name, const Spec& spec) const {
  const View v = files_.contains(name) || spec ? files_.at(name) : View();
  require(v.spec() == spec, "model", "{}: by quantization_config in config.json, {} is {}, but the file has {}",
          files_.path().string(), name, spec ? to_string(spec) : "absent", v ? to_string(v.spec()) : "none");
  return v;
}

bool Binder::bind_quantized(const std::string& name, nn::Weight& weight, StateTable& table,
                            std::vector<Buffer>& own) const {
  const auto in_files = [&](const nn::Codec& c, std::size_t i) {
    return spelled(name + std::string(c.names[i].in_files));
  };
  const auto all = quant::codecs();
  const auto found = std::ranges::find_if(all, [&](const auto* c) { return files_.contains(in_files(*c, 0)); });
  if (found == all.end()) return false;
  const nn::Codec& codec = **found;
  const auto first = in_files(codec, 0);
  require(quant_ && (quant_->codec == &codec || codec.groups.empty()), "model",
          "{}: {} is there, but config.json has no quantization_config of {}", files_.path().string(), first,
          codec.name);
  const bool in_out = transposed(name);
  const Shape expected = in_out ? Shape{weight.whole()[1], weight.whole()[0]} : weight.whole();  // (out, in)
  const Spec is = files_.at(first).spec();
  weight.name = name, weight.codec = &codec;
  weight.parts = codec.specs(expected[0], expected[1], quant_->codec == &codec ? quant_->options : nn::CodecOptions());
  require(expected[0] > 0 && expected[1] > 0 && weight.parts[0] == is, "model",
          "{}: config.json asks for {} of shape {}, but the file has {} {}", files_.path().string(), name,
          to_string(expected), first, to_string(is));
  nn::Codec::Parts<View> views;
  for (std::size_t i = 0; i < views.size() && !codec.names[i].in_files.empty(); ++i)
    views[i] = find_part(in_files(codec, i), weight.parts[i]);
  auto taken = take_part(weight, views, in_out);
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!views[i]) continue;
    Tensor t(const_cast<void*>(views[i].data()), views[i].spec());
    if (taken[i].tensor) {
      t = taken[i].tensor, weight.parts[i] = t.spec();
      own.push_back(std::move(taken[i].buffer));
      drop(views[i]);
    }
    table.add_frozen(weight, codec.names[i].in_programs, t);
  }
  return true;
}

bool Binder::bind_stored(const std::string& name, nn::Weight& weight, StateTable& table,
                         std::vector<Buffer>& own) const {
  if (!decoder_.rotary() && name.ends_with(fmt::format("{}.weight", decoder_.positions))) return false;
  auto stored = files_.stored_matrix(spelled(name));
  if (!stored || stored->transposed != transposed(name)) return false;  // products need (out, in)
  find(name, weight.whole());
  weight.name = name, weight.codec = stored->codec;
  for (std::size_t i = 0; i < stored->parts.size(); ++i) {
    if (!stored->parts[i]) continue;
    weight.parts[i] = stored->parts[i].spec();
    table.add_frozen(weight, stored->codec->names[i].in_programs, stored->parts[i]);
  }
  std::ranges::move(stored->own, std::back_inserter(own));
  return true;
}

void Binder::require_whole_layers(const std::vector<std::string>& read) const {
  std::set<std::string> names, layers;
  for (const auto& name : read) {
    const auto& file_name = *names.insert(spelled(name)).first;
    if (auto layer = layer_of(file_name); !layer.empty()) layers.insert(std::move(layer));
  }
  std::vector<std::string_view> others;
  const auto stored = files_.names();
  for (const auto& name : stored) {
    const bool counts = (name.ends_with(".weight") || name.ends_with(".bias")) && !decoder_.is_no_parameter(name);
    if (counts && !names.contains(name) && layers.contains(layer_of(name))) others.push_back(name);
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
