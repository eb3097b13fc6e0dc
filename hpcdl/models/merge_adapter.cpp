#include "hpcdl/models/merge_adapter.h"

#include <set>
#include <string>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl::models {
namespace {

/// t in f32, contiguous.
OwnedTensor widened(const View& t, bool transposed = false) {
  OwnedTensor out({t.shape(), DType::f32});
  convert_elements(out.tensor, t);
  if (!transposed) return out;
  const auto rows = t[0], cols = t[1];
  OwnedTensor flipped({{cols, rows}, DType::f32});
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      flipped.tensor.ptr<float>()[j * rows + i] = out.tensor.ptr<float>()[i * cols + j];
  return flipped;
}

class Merge {
 public:
  Merge(Pool& pool, const AdapterFolder& adapter, const DecoderSpec& decoder)
      : pool_(pool), adapter_(adapter), decoder_(decoder) {}

  /// The merged tensor of this name in a file, in f32; nothing if the adapter does not change it.
  std::optional<OwnedTensor> value(const std::string& in_file, const View& base) {
    const auto name = in_model(in_file);
    constexpr std::string_view kWeight = ".weight";
    if (adapter_.find(name)) {
      used_.insert(name);
      return widened(adapter_.at(name, base.shape()));
    }
    if (!name.ends_with(kWeight)) return std::nullopt;
    const auto layer = name.substr(0, name.size() - kWeight.size());
    if (adapter_.rank(layer) == 0) return std::nullopt;
    return added(layer, base);
  }
  const std::set<std::string>& used() const { return used_; }

 private:
  /// Files of a model without its head lack the prefix of its names.
  std::string in_model(const std::string& name) const {
    const auto full = std::string(decoder_.prefix) + name;
    const bool bare = !name.starts_with(decoder_.prefix) && name != fmt::format("{}.weight", decoder_.head);
    return bare ? full : name;
  }

  OwnedTensor added(const std::string& layer, const View& base) {
    const bool flipped = decoder_.layout == nn::Layout::in_out;
    require(base.shape().rank() == 2, "adapter", "{}.weight: expected a matrix, found {} dimensions", layer,
            base.shape().rank());
    const auto out = base[flipped ? 1 : 0], in = base[flipped ? 0 : 1], r = adapter_.rank(layer);
    const auto a = layer + ".lora_A.weight", b = layer + ".lora_B.weight";
    used_.insert({a, b});
    const auto first = widened(adapter_.at(a, {r, in}), flipped), second = widened(adapter_.at(b, {out, r}));
    OwnedTensor sum = widened(base), product({base.shape(), DType::f32});
    Stream s(pool_);
    if (flipped) Linear::forward(s, product.tensor, first.tensor, second.tensor, {}, {}, {});
    else Linear::forward(s, product.tensor, second.tensor, first.tensor, {}, {}, {.conv1d = true});
    auto* to = sum.tensor.ptr<float>();
    const auto* from = product.tensor.ptr<float>();
    const float scale = adapter_.options().scale();
    for (std::int64_t i = 0; i < sum.tensor.size(); ++i) to[i] += scale * from[i];
    return sum;
  }

  Pool& pool_;
  const AdapterFolder& adapter_;
  DecoderSpec decoder_;
  std::set<std::string> used_;
};

}  // namespace

void merge_adapter(Pool& pool, const io::fs::path& from, const AdapterFolder& adapter, const io::fs::path& to,
                   DType dtype) {
  auto config = read_hf_config(from);
  require_plain(from, "adapter");
  require(!config.quant, "adapter", "{} is quantised: merge the adapter into the original model, then quantise that",
          from.string());
  require_uncompressed(config, from, "adapter");
  const auto files = io::TensorFolder::open(from);
  adapter.require_base(from);
  std::vector<io::NamedSpec> specs;
  for (const auto& t : files.tensors())
    specs.push_back({t.name, {t.spec.shape, dtype != DType::none && is_float(t.spec.dtype) ? dtype : t.spec.dtype}});
  io::TensorFolderWriter writer(to, specs);
  Merge merge(pool, adapter, row_of(config.family).decoder(config));
  for (const auto& s : specs) {
    const View base = files.at(s.name);
    const auto merged = merge.value(s.name, base);
    const View value = merged ? View(merged->tensor) : base;
    if (value.dtype() == s.spec.dtype) {
      writer.write(s.name, value);
      continue;
    }
    const OwnedTensor rounded(s.spec);
    convert_elements(rounded.tensor, value);
    writer.write(s.name, rounded.tensor);
  }
  adapter.require_no_others(merge.used());
  writer.commit();
  if (dtype != DType::none) config.dtype = dtype;
  write_hf_config(to, config);
}

}  // namespace hpcdl::models
