#include "hpcdl/models/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/foreign/packed_matrix.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/foreign_codecs.h"

namespace hpcdl::models {

std::optional<io::PackConfig> pack_config_of(const io::fs::path& folder) {
  std::error_code ignored;
  if (!io::fs::is_directory(folder, ignored)) return std::nullopt;
  const auto path = io::config_of_model(folder);
  const io::Json json = io::read_json(path);
  const io::JsonObject o(json, path.string());
  const io::Json* quant = o.find("quantization_config");
  if (!quant) return std::nullopt;
  const auto type = o.get<std::string>("torch_dtype").value_or(o.get_or<std::string>("dtype", "bfloat16"));
  const auto dtype = type == "float32" ? DType::f32 : type == "float16" ? DType::f16 : DType::bf16;
  return io::pack_config_in(*quant, dtype, o.where() + ": quantization_config");
}

void require_plain(const io::fs::path& model, std::string_view area) {
  require(!io::is_gguf(model) && !pack_config_of(model), area,
          "{}: the model is in a file of another program; make a folder of it with `hpcdl convert --to bf16`",
          model.string());
}

std::vector<std::string> PackedWeights::names() const {
  std::set<std::string> names;
  for (const auto& t : folder_.tensors()) names.insert(io::parameter_of(t.name));
  return {names.begin(), names.end()};
}

bool PackedWeights::contains(const std::string& name) const {
  return folder_.contains(name) || io::find_packed(config_, folder_, name);
}

View PackedWeights::at(const std::string& name) const {
  const auto m = io::find_packed(config_, folder_, name);
  return m ? View(nullptr, {{m->rows, m->columns}, m->dtype}) : folder_.at(name);
}

void PackedWeights::read(const std::string& name, const Tensor& to, Pool* pool) const {
  const auto m = io::find_packed(config_, folder_, name);
  if (!m) return convert_elements(to, folder_.at(name));
  require(to.shape() == Shape{m->rows, m->columns}, "model", "{}: expected {} of shape {}, the file has ({}, {})",
          path().string(), name, to_string(to.shape()), m->rows, m->columns);
  constexpr std::int64_t kRows = 64;  // decoded at a time: some methods hold the rows of a word side by side
  const auto parts = (m->rows + kRows - 1) / kRows;
  const auto some = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(kRows * m->columns));
    for (auto i = begin; i < end; ++i) {
      const auto first = i * kRows, count = std::min(kRows, m->rows - first);
      m->decode(first, first + count, values.data());
      const Spec spec{{count, m->columns}, to.dtype()};
      convert_elements(Tensor(to.ptr<std::byte>() + first * m->columns * dtype_bytes(to.dtype()), spec),
                       View(values.data(), {spec.shape, DType::f32}));
    }
  };
  if (pool) parallel_for(*pool, parts, 1, some);
  else some(0, parts);
}

namespace {

const nn::Codec& codec_of(QuantFormat format) {
  if (format == QuantFormat::int8) return quant::int8_codec;
  if (format == QuantFormat::fp8_blocks) return quant::fp8_blocks_codec;
  return format == QuantFormat::fp4 || format == QuantFormat::fp4_double ? quant::fp4_codec : quant::nf4_codec;
}

}  // namespace

std::optional<StoredMatrix> PackedWeights::stored_matrix(const std::string& name) const {
  const auto m = io::find_packed(config_, folder_, name);
  if (!m || !m->parts) return std::nullopt;
  const auto& parts = m->parts->parts;
  const auto tensor = [](const View& v) { return Tensor(const_cast<void*>(v.data()), v.spec()); };
  StoredMatrix stored{.codec = &codec_of(m->parts->format),
                      .parts = {tensor(parts.codes), tensor(parts.scale), tensor(parts.outer)}};
  if (const auto& table = m->parts->table; !table.empty()) {
    const Spec spec{{static_cast<std::int64_t>(table.size())}, DType::f32};
    stored.parts[3] = Tensor(stored.own.emplace_back(spec.bytes()).data(), spec);
    std::memcpy(stored.parts[3].data(), table.data(), static_cast<std::size_t>(spec.bytes()));
  }
  return stored;
}

std::vector<const io::MappedFile*> PackedWeights::files() const {
  std::vector<const io::MappedFile*> files;
  for (const auto& shard : folder_.shards()) files.push_back(&shard.file());
  return files;
}

}  // namespace hpcdl::models
