#include "hpcdl/models/extract_adapter.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/fingerprint.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/low_rank.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl::models {
namespace {

double squared(const View& t) {
  double sum = 0;
  for (std::int64_t i = 0; i < t.size(); ++i) sum += double{t.ptr<float>()[i]} * double{t.ptr<float>()[i]};
  return sum;
}

OwnedTensor difference(const View& a, const View& b) {
  OwnedTensor to({a.shape(), DType::f32}), minus({b.shape(), DType::f32});
  convert_elements(to.tensor, a), convert_elements(minus.tensor, b);
  for (std::int64_t i = 0; i < to.tensor.size(); ++i) to.tensor.ptr<float>()[i] -= minus.tensor.ptr<float>()[i];
  return to;
}

/// (columns, rows)
OwnedTensor transposed(const Tensor& t) {
  OwnedTensor out({{t[1], t[0]}, DType::f32});
  for (std::int64_t i = 0; i < t[0]; ++i)
    for (std::int64_t j = 0; j < t[1]; ++j) out.tensor.ptr<float>()[j * t[0] + i] = t.ptr<float>()[i * t[1] + j];
  return out;
}

struct Extraction {
  Pool& pool;
  std::int64_t r;
  bool conv1d;
  ExtractedAdapter report = {};
  std::vector<std::pair<std::string, OwnedTensor>> tensors = {};

  void add(const std::string& layer, const OwnedTensor& d) {
    const auto most = std::min(d.tensor[0], d.tensor[1]);
    if (r > most)
      fail_usage("adapter", "--rank {} is larger than the layer {}, which is {}: choose at most {}", r, layer,
                 to_string(d.tensor.shape()), most);
    auto [left, right] = nearest_of_rank(pool, d.tensor, r);
    const auto columns = transposed(left.tensor);
    OwnedTensor product(d.tensor.spec());
    Stream s(pool);
    Linear::forward(s, product.tensor, columns.tensor, right.tensor, {}, {}, {.conv1d = true});
    report.squared += squared(d.tensor);
    report.left += squared(difference(d.tensor, product.tensor).tensor);
    ++report.layers;
    tensors.emplace_back(layer + ".lora_A.weight", conv1d ? std::move(left) : std::move(right));
    tensors.emplace_back(layer + ".lora_B.weight", transposed((conv1d ? right : left).tensor));
  }
};

}  // namespace

double ExtractedAdapter::relative_error() const { return squared > 0 ? std::sqrt(left / squared) : 0; }

ExtractedAdapter extract_adapter(Pool& pool, const io::fs::path& base, const io::fs::path& tuned,
                                 const io::fs::path& to, std::int64_t r) {
  const auto config = read_hf_config(base);
  require_plain(base, "adapter"), require_plain(tuned, "adapter");
  require(!config.quant && !read_hf_config(tuned).quant, "adapter", "{} and {}: expected models that are not quantised",
          base.string(), tuned.string());
  require_uncompressed(config, base, "adapter"), require_uncompressed(read_hf_config(tuned), tuned, "adapter");
  const auto decoder_spec = row_of(config.family).decoder(config);
  const auto before = io::TensorFolder::open(base), after = io::TensorFolder::open(tuned);
  Extraction e{pool, r, decoder_spec.layout == nn::Layout::in_out};
  AdapterFacts facts{.base = base.string(), .conv1d = e.conv1d};
  Decoder decoder(config, decoder_spec);
  std::set<std::string> linear;
  decoder.visit([&]<class M>(const auto& name, M&) {
    if constexpr (std::is_same_v<M, nn::Linear>) linear.insert(std::string(name) + ".weight");
  });
  for (const auto& t : before.tensors()) {
    const auto full = linear.contains(t.name) ? t.name : std::string(decoder_spec.prefix) + t.name;
    const View a = before.at(t.name), b = after.at(t.name);
    require(a.shape() == b.shape(), "adapter", "{}: {}: expected {} as in {}, found {}", tuned.string(), t.name,
            to_string(a.shape()), base.string(), to_string(b.spec()));
    if (decoder_spec.is_no_parameter(t.name) || !is_float(a.dtype())) continue;
    const auto d = difference(b, a);
    const auto layer = full.substr(0, full.size() - std::string_view(".weight").size());
    const bool differs = squared(d.tensor) > 0, is_layer = linear.contains(full);
    if (differs && is_layer) e.add(layer, d);
    else if (differs) e.report.others.push_back(t.name);
    if (is_layer) (differs ? facts.layers : facts.no_layers).push_back(layer);
  }
  require(e.report.layers > 0, "adapter", "{} and {}: expected linear layers that differ, found none", base.string(),
          tuned.string());
  std::vector<io::NamedSpec> specs;
  for (const auto& [name, t] : e.tensors) specs.push_back({peft_name(name, true), t.tensor.spec()});
  io::make_folder(to);
  io::SafeTensorsWriter writer(to / kAdapterTensors, specs);
  for (const auto& [name, t] : e.tensors) writer.write(peft_name(name, true), t.tensor);
  writer.commit();
  const AdapterOptions options{.method = AdapterMethod::lora, .r = r, .alpha = static_cast<double>(r)};
  io::write_file_atomic(to / kAdapterConfig, make_adapter_config(options, facts).dump(2) + "\n");
  write_adapter_base(to, {fingerprint(before), options.scale()});
  return e.report;
}

}  // namespace hpcdl::models
