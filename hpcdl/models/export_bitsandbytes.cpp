#include "hpcdl/models/export_bitsandbytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/four_bits.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::models {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__nf4";
constexpr std::int64_t kStateBytes = 320;  // of JSON that ends in blanks: its length is known before its numbers are

/// Specs of the tensors of a quantised matrix, and what is written to them.
class Nf4Tensors {
 public:
  Nf4Tensors(std::string name, const Spec& matrix, bool nested)
      : name_(std::move(name)), matrix_(matrix), nested_(nested) {}

  std::vector<io::NamedSpec> specs() const {
    const std::int64_t weights = matrix_.size(), blocks = weights / 64;
    std::vector<io::NamedSpec> list = {{name_, {{weights / 2, 1}, DType::u8}},
                                       {name_ + ".absmax", {{blocks}, nested_ ? DType::u8 : DType::f32}},
                                       {name_ + ".quant_map", {{16}, DType::f32}},
                                       {name_ + std::string(kState), {{kStateBytes}, DType::u8}}};
    if (!nested_) return list;
    list.push_back({name_ + ".nested_absmax", {{(blocks + 255) / 256}, DType::f32}});
    list.push_back({name_ + ".nested_quant_map", {{256}, DType::f32}});
    return list;
  }

  void write(io::TensorFolderWriter& writer, const quant::QuantTensors& q) const {
    const std::string state = this->state(q);
    const auto* table = nested_ ? q.table.tensor.data() : nullptr;
    const void* values[] = {q.codes.tensor.data(), q.scale.tensor.data(), kNf4Values,
                            state.data(),          q.outer.tensor.data(), table};
    const auto list = specs();
    for (std::size_t i = 0; i < list.size(); ++i) writer.write(list[i].name, View(values[i], list[i].spec));
  }

 private:
  std::string state(const quant::QuantTensors& q) const {
    io::Json json = {{"quant_type", "nf4"},
                     {"blocksize", 64},
                     {"dtype", array_name(matrix_.dtype)},
                     {"shape", {matrix_[0], matrix_[1]}}};
    if (nested_) {
      json["nested_blocksize"] = 256, json["nested_dtype"] = "float32";
      json["nested_offset"] = static_cast<double>(q.table.tensor.ptr<float>()[256]);
    }
    std::string text = json.dump();
    require(std::ssize(text) <= kStateBytes, "convert", "{}: its description has {} bytes, expected at most {}", name_,
            text.size(), kStateBytes);
    text.resize(static_cast<std::size_t>(kStateBytes), ' ');
    return text;
  }

  std::string name_;
  Spec matrix_;
  bool nested_;
};

/// Whether a tensor is the matrix of a layer of a block.
bool is_of_block(const DecoderSpec& decoder, const std::string& name, const Spec& spec) {
  return treatment(decoder, true, name, spec) == quant::Treatment::matrix &&
         std::ranges::any_of(decoder.block,
                             [&](const auto& m) { return name.ends_with(fmt::format(".{}.weight", m.name)); });
}

io::Json quantization_config(const io::ModelConfig& config, bool nested) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", nested},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_compute_dtype", array_name(config.dtype)}};
}

}  // namespace

Resaved export_bitsandbytes(const std::filesystem::path& from, const io::ModelConfig& config,
                            const std::filesystem::path& to, const BitsAndBytesOptions& options, Pool& pool) {
  require_plain(from, "convert");
  require(!config.quant, "convert", "{}: the model is quantised already; start from the original", from.string());
  require_uncompressed(config, from, "convert");
  const auto& row = row_of(config.family);
  const DecoderSpec decoder = row.decoder(config);
  require(!row.mixture && decoder.layout == nn::Layout::out_in, "convert",
          "{}: bitsandbytes holds linear layers (out, in) in NF4, and family {} has others: choose --to gguf",
          from.string(), io::enum_name(config.family));
  const auto files = io::TensorFolder::open(from);
  std::vector<io::NamedSpec> specs;
  for (const auto& t : files.tensors()) {
    if (!is_of_block(decoder, t.name, t.spec)) {
      specs.push_back({t.name, t.spec});
      continue;
    }
    quant::require_fit(quant::nf4_codec, t.name, t.spec[1], {});
    std::ranges::copy(Nf4Tensors(t.name, t.spec, options.nested).specs(), std::back_inserter(specs));
  }
  Resaved report{.tensors = std::ssize(specs), .dtype = config.dtype};
  for (const auto& s : specs) report.bytes += s.spec.bytes();
  std::filesystem::create_directories(to);
  io::TensorFolderWriter writer(to, specs, options.shard_bytes);
  for (const auto& t : files.tensors()) {
    const View v = files.at(t.name);
    if (is_of_block(decoder, t.name, t.spec))
      Nf4Tensors(t.name, t.spec, options.nested)
          .write(writer, quant::quantize_four_bits(pool, v, options.nested ? QuantFormat::nf4_double : QuantFormat::nf4,
                                                   false, nullptr, t.name));
    else writer.write(t.name, v);
  }
  writer.commit();
  io::Json json = io::read_json(from / "config.json");
  json["quantization_config"] = quantization_config(config, options.nested);
  io::write_file_atomic(to / "config.json", json.dump(2) + "\n");
  quant::copy_companions(from, to);
  return report;
}

}  // namespace hpcdl::models
