#include "hpcdl/models/text_encoder.h"

#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

namespace {

constexpr DecoderSpec kNames{.prefix = "bert."};

std::vector<nn::Param*> params_of(Encoder& model) {
  std::vector<nn::Param*> list;
  nn::for_each_param(model, [&](const std::string& name, nn::Param& p) {
    p.name = name;
    list.push_back(&p);
  });
  return list;
}

}  // namespace

struct TextEncoder::Impl {
  EncoderConfig config;
  EmbeddingConfig embedding;
  Encoder model;
  FolderWeights folder;
  std::vector<Buffer> own;  // converted weights
  DType asked;
  StateTable state;
  ProgramCache programs;

  Impl(const std::filesystem::path& path, DType compute)
      : config(read_encoder_config(path)),
        embedding(read_embedding_config(path, config)),
        model(config),
        folder(path),
        asked(compute),
        state(params_of(model)) {}

  /// Positions with the embedding of the first segment, in f32.
  Tensor positions(const Binder& binder, const nn::Param& p) {
    const auto rows = [&](const std::string& name, const Shape& shape) {
      const Spec spec{shape, DType::f32};
      own.emplace_back(spec.bytes());
      const Tensor t(own.back().data(), spec);
      binder.copy(name, t);
      return t;
    };
    const std::string types = "bert.embeddings.token_type_embeddings.weight", bare = types.substr(kNames.prefix.size());
    const auto& there = folder.contains(types) ? types : bare;
    const Shape shape = folder.at(there).shape();
    require(shape.rank() == 2 && shape[0] >= 1 && shape[1] == config.width, "model",
            "{}: {} must be (1 or more, {}), the file has {}", folder.path().string(), there, config.width,
            to_string(shape));
    const Tensor all = rows(p.name, p.spec.shape), segment = rows(there, shape);
    for (std::int64_t i = 0; i < all.size(); ++i) all.ptr<float>()[i] += segment.ptr<float>()[i % config.width];
    return all;
  }

  void bind(const ComputeType& compute) {
    const Binder binder(folder, kNames);
    std::vector<std::string> names;
    nn::for_each_param(model, [&](const std::string& name, nn::Param& p) {
      names.push_back(name);
      const bool special = &p == &model.positions.weight;
      state.add_value(p, special ? positions(binder, p) : binder.view(name, p.spec, compute, own));
    });
    binder.require_whole_layers(names);
  }
};

TextEncoder::TextEncoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextEncoder::TextEncoder(TextEncoder&&) noexcept = default;
TextEncoder& TextEncoder::operator=(TextEncoder&&) noexcept = default;
TextEncoder::~TextEncoder() = default;

TextEncoder TextEncoder::open(const std::filesystem::path& folder, const ComputeType& compute) {
  TextEncoder model(std::make_unique<Impl>(folder, compute.dtype));
  model.impl_->bind(compute);
  return model;
}

const EncoderConfig& TextEncoder::config() const { return impl_->config; }
const EmbeddingConfig& TextEncoder::embedding() const { return impl_->embedding; }

DType TextEncoder::compute_type() const {
  if (impl_->asked != DType::none) return impl_->asked;
  if (!device().is_cuda()) return DType::f32;
  return impl_->model.blocks.front().query.weight.value.dtype;
}

Var TextEncoder::states(Graph& g, const PackedTexts& texts) const {
  impl_->state.bind(g);
  const Var x = cast(impl_->model(texts, compute_type()), DType::f32);
  return g.reshape(x, {x[1], x[2]});
}

void TextEncoder::to_device(const Stream& s) {
  impl_->programs.clear();
  impl_->state.to_device(s, {});
}

Device TextEncoder::device() const { return impl_->state.device(); }
std::int64_t TextEncoder::bytes() const { return impl_->state.bytes(); }

std::int64_t TextEncoder::converted_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& buffer : impl_->own) bytes += buffer.bytes();
  return bytes;
}

ProgramCache& TextEncoder::programs() const { return impl_->programs; }

}  // namespace hpcdl::models
