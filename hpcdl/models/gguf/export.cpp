#include "hpcdl/models/gguf/export.h"

#include <algorithm>
#include <map>

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/encode.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/vocabulary.h"
#include "hpcdl/io/gguf/writer.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/gguf/metadata.h"
#include "hpcdl/models/gguf/names.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::models {
namespace {

/// A tensor of the file and the parameters that it holds: one, or those of all experts.
struct Exported {
  io::GgufWriter::Tensor tensor;
  struct Source {
    std::string name;
    Shape shape;
    GgufPlace place;
  };
  std::vector<Source> sources;
};

class GgufExporter {
 public:
  GgufExporter(const io::ModelConfig& config, const WeightFiles& files, io::GgufType type, Pool& pool)
      : files_(files), type_(io::info_of(type)), pool_(pool) {
    const GgufNames names(row_of(config.family).decoder(config), config);
    std::map<std::string, std::size_t> index;
    const auto model = LanguageModel::create(config, std::nullopt, false);
    for (const auto& p : model.parameters()) {
      auto place = names.place_of(p.name);
      require(place.has_value(), "model", "{} has no place in a GGUF file", p.name);
      const auto [it, fresh] = index.emplace(place->tensor, tensors_.size());
      if (fresh) tensors_.push_back({.tensor = {.name = place->tensor}, .sources = {}});
      tensors_[it->second].sources.push_back({p.name, p.whole().shape, std::move(*place)});
    }
    for (auto& t : tensors_) describe(t);
  }

  GgufExport write(const io::fs::path& out, const io::GgufValues& values, const std::vector<RopeDivisors>& divisors) {
    std::vector<io::GgufWriter::Tensor> list;
    for (const auto& d : divisors) list.push_back({d.tensor, io::GgufType::f32, {std::ssize(d.values)}});
    for (const auto& t : tensors_) list.push_back(t.tensor);
    report_.tensors = std::ssize(list);
    for (const auto& t : list) report_.bytes += t.bytes();
    io::GgufWriter writer(out, values, std::move(list));
    for (const auto& d : divisors) writer.append(std::as_bytes(std::span(d.values)));
    for (const auto& t : tensors_)
      for (const auto& s : t.sources) writer.append(encoded(t.tensor, s));
    writer.commit();
    return report_;
  }

 private:
  void describe(Exported& t) {
    const auto& first = t.sources.front();
    auto& shape = t.tensor.shape = first.shape;
    if (first.place.transposed) shape = {shape[1], shape[0]};
    const auto columns = shape[-1];
    const bool small = shape.rank() == 1 || t.tensor.name.find("ffn_gate_inp") != std::string::npos ||
                       t.tensor.name.starts_with("position_embd");
    const auto fits = [&](io::GgufType type) { return columns % io::info_of(type).elements == 0; };
    using enum io::GgufType;
    t.tensor.type = small ? f32 : fits(type_.type) ? type_.type : fits(q8_0) ? q8_0 : f16;
    if (!small && t.tensor.type != type_.type) ++report_.in_other_types;
    if (first.place.expert >= 0) shape = {std::ssize(t.sources), shape[0], shape[1]};
  }

  std::vector<std::byte> encoded(const io::GgufWriter::Tensor& t, const Exported::Source& s) {
    const OwnedTensor values({s.shape, DType::f32});
    files_.read(s.name, values.tensor, &pool_);
    require(count_non_finite(values.tensor) == 0, "model", "{}: {} holds NaN or infinity", files_.path().string(),
            s.name);
    const auto* x = values.tensor.ptr<float>();
    const auto& info = io::info_of(t.type);
    const auto& place = s.place;
    const auto columns = place.heads > 0 && s.shape.rank() == 1 ? 1 : t.shape[-1], rows = s.shape.size() / columns;
    const auto row_bytes = columns / info.elements * info.bytes;
    std::vector<std::byte> out(static_cast<std::size_t>(rows * row_bytes));
    constexpr std::int64_t kElements = 1 << 14;  // of a share, at least
    parallel_for(pool_, rows, kElements / columns + 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(columns));
      for (auto stored = begin; stored < end; ++stored) {
        const auto r = place.heads > 0 ? model_row(stored, rows / place.heads) : stored;
        for (std::int64_t c = 0; c < columns; ++c)
          row[static_cast<std::size_t>(c)] = x[place.transposed ? c * rows + r : r * columns + c] + place.added;
        io::encode_blocks(t.type, row.data(), columns / info.elements, out.data() + stored * row_bytes);
      }
    });
    return out;
  }

  const WeightFiles& files_;
  const io::GgufTypeInfo& type_;
  Pool& pool_;
  std::vector<Exported> tensors_;
  GgufExport report_;
};

}  // namespace

GgufExport write_gguf(const io::fs::path& model, const io::ModelConfig& config, const io::fs::path& out,
                      io::GgufType type, Pool& pool) {
  require(io::can_encode(type), "model", "expected one of the types {}, found {}", io::encoded_gguf_types(),
          io::info_of(type).name);
  require_uncompressed(config, model, "convert");
  io::GgufValues values;
  add_config(values, config, type);
  if (io::is_gguf(model)) io::copy_tokenizer(values, io::GgufFile::open(model).metadata());
  else io::add_tokenizer(values, model, config.vocab);
  const auto files = WeightFiles::open(model, config, row_of(config.family).decoder(config));
  return GgufExporter(config, *files, type, pool).write(out, values, rope_divisors(config));
}

}  // namespace hpcdl::models
