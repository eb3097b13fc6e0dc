#include "hpcdl/models/gguf/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/quant/foreign_codecs.h"

namespace hpcdl::models {
namespace {

DType plain_type(io::GgufType type) {
  switch (type) {
    case io::GgufType::f32: return DType::f32;
    case io::GgufType::f16: return DType::f16;
    default: return DType::bf16;
  }
}

/// Null for types that no kernel multiplies.
const nn::Codec* codec_of(io::GgufType type) {
  switch (type) {
    case io::GgufType::q8_0: return &quant::q8_0_codec;
    case io::GgufType::q4_0: return &quant::q4_0_codec;
    case io::GgufType::q4_k: return &quant::q4_k_codec;
    case io::GgufType::q6_k: return &quant::q6_k_codec;
    default: return nullptr;
  }
}

/// to (columns, rows) from values (rows, columns).
void round_transposed(const Tensor& to, const float* values, Pool& pool) {
  const auto columns = to[0], rows = to[1];
  parallel_for(pool, columns, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(rows));
    for (auto c = begin; c < end; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) row[static_cast<std::size_t>(r)] = values[r * columns + c];
      convert_elements(Tensor(to.ptr<std::byte>() + c * rows * dtype_bytes(to.dtype()), {{rows}, to.dtype()}),
                       View(row.data(), {{rows}, DType::f32}));
    }
  });
}

}  // namespace

/// Rows of a tensor as the file holds them, and what they are for the model.
struct GgufWeights::Matrix {
  const io::GgufTypeInfo& type;
  GgufPlace place;
  const std::byte* blocks;  // of the rows
  std::int64_t rows, columns;
  Shape shape;  // for the model

  std::int64_t row_bytes() const { return columns / type.elements * type.bytes; }

  /// Row `r` of the model's order.
  const std::byte* row(std::int64_t r) const {
    return blocks + (place.heads > 0 ? stored_row(r, rows / place.heads) : r) * row_bytes();
  }
  void decode(std::int64_t r, float* out) const {
    io::decode_blocks(type.type, row(r), columns / type.elements, out);
    if (place.added != 0)
      for (std::int64_t i = 0; i < columns; ++i) out[i] -= place.added;
  }
};

GgufWeights::GgufWeights(const io::fs::path& path, const io::ModelConfig& config, const DecoderSpec& decoder)
    : file_(io::GgufFile::open(path)), names_(decoder, config) {}

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> names;
  for (const auto* t : file_.tensors()) names.push_back(names_.name_of(t->name));
  return names;
}

bool GgufWeights::contains(const std::string& name) const {
  const auto place = names_.place_of(name);
  if (!place) return false;
  const auto* t = file_.find(place->tensor);
  return t && (place->expert < 0 || (t->shape.rank() == 3 && place->expert < t->shape[0]));
}

GgufWeights::Matrix GgufWeights::matrix(const std::string& name) const {
  auto place = names_.place_of(name);
  require(place.has_value(), "model", "{}: a GGUF file has no tensor for {}", path().string(), name);
  const auto& t = file_.at(place->tensor);
  Shape shape = t.shape;
  std::int64_t first = 0;
  if (place->expert >= 0) {
    require(shape.rank() == 3 && place->expert < shape[0], "model",
            "{}: {}: expected the matrices of more than {} experts, found the shape {}", path().string(), t.name,
            place->expert, to_string(shape));
    shape = {shape[1], shape[2]};
    first = place->expert * shape[0];
  }
  const auto columns = shape[-1], rows = columns == 0 ? 0 : shape.size() / columns;
  require(!place->transposed || shape.rank() == 2, "model", "{}: {}: expected a matrix, found the shape {}",
          path().string(), t.name, to_string(shape));
  // A bias of q or k is one column.
  const bool alternates = place->heads > 0, bias = alternates && shape.rank() == 1;
  const auto& type = io::info_of(t.type);
  require(!bias || !type.quantized(), "model", "{}: {}: expected plain numbers in a bias, found {}", path().string(),
          t.name, type.name);
  Matrix m{.type = type,
           .place = std::move(*place),
           .blocks = file_.data(t) + first * (columns / type.elements * type.bytes),
           .rows = bias ? columns : rows,
           .columns = bias ? 1 : columns,
           .shape = place->transposed ? Shape{shape[1], shape[0]} : shape};
  require(!alternates || (m.rows % (2 * m.place.heads) == 0), "model",
          "{}: {}: expected {} heads of an even number of rows, found {} rows", path().string(), t.name, m.place.heads,
          m.rows);
  return m;
}

View GgufWeights::at(const std::string& name) const {
  const auto m = matrix(name);
  const bool view = m.place.as_stored() && !m.type.quantized();
  return View(view ? m.blocks : nullptr, {m.shape, plain_type(m.type.type)});
}

void GgufWeights::read(const std::string& name, const Tensor& to, Pool* pool) const {
  const auto m = matrix(name);
  require(to.shape() == m.shape, "model", "{}: expected {} of shape {}, the file has {}", path().string(), name,
          to_string(to.shape()), to_string(m.shape));
  std::optional<Pool> one;
  Pool& threads = pool ? *pool : one.emplace(1);
  constexpr std::int64_t kShare = 1 << 14;  // elements, at least
  const auto each_row = [&](const auto& f) {
    parallel_for(threads, m.rows, kShare / std::max<std::int64_t>(m.columns, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (auto r = begin; r < end; ++r) f(r);
                 });
  };
  if (m.place.transposed) {
    const Buffer values(m.rows * m.columns * dtype_bytes(DType::f32));
    auto* decoded = reinterpret_cast<float*>(values.data());
    each_row([&](std::int64_t r) { m.decode(r, decoded + r * m.columns); });
    return round_transposed(to, decoded, threads);
  }
  each_row([&](std::int64_t r) {
    thread_local std::vector<float> values;
    values.resize(static_cast<std::size_t>(m.columns));
    m.decode(r, values.data());
    const Spec spec{{m.columns}, to.dtype()};
    convert_elements(Tensor(to.ptr<std::byte>() + r * spec.bytes(), spec),
                     View(values.data(), {spec.shape, DType::f32}));
  });
}

std::optional<StoredMatrix> GgufWeights::stored_matrix(const std::string& name) const {
  if (!contains(name)) return std::nullopt;
  const auto m = matrix(name);
  const auto* codec = codec_of(m.type.type);
  if (!codec || m.place.expert >= 0 || m.place.added != 0 || m.shape.rank() != 2) return std::nullopt;
  StoredMatrix stored{.codec = codec, .transposed = m.place.transposed};
  const Spec spec = codec->specs(m.rows, m.columns, {})[0];
  if (m.place.heads == 0) {
    stored.parts[0] = Tensor(const_cast<std::byte*>(m.blocks), spec);
    return stored;
  }
  stored.parts[0] = Tensor(stored.own.emplace_back(spec.bytes()).data(), spec);
  for (std::int64_t r = 0; r < m.rows; ++r)
    std::memcpy(stored.parts[0].ptr<std::byte>() + r * m.row_bytes(), m.row(r),
                static_cast<std::size_t>(m.row_bytes()));
  return stored;
}

}  // namespace hpcdl::models
