#include "hpcdl/model.h"

#include "hpcdl/core/error.h"
#include "hpcdl/io/config_value.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl {

namespace {

io::ModelConfig config_of(const ModelShape& s) {
  io::ModelConfig c;
  c.family = io::convert_config<io::Family>(io::ConfigValue(s.family), {});
  require(!io::is_image_family(c.family), "model", "{} reads images: a Model is a language model", s.family);
  c.layers = s.layers, c.heads = s.heads, c.width = s.width, c.context = s.context, c.vocab = s.vocab;
  c.kv_heads = s.kv_heads, c.head_dim = s.head_dim, c.ffn = s.ffn, c.tied = s.tied;
  return c;
}

}  // namespace

Model::Model(models::LanguageModel model) : model_(std::make_unique<models::LanguageModel>(std::move(model))) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::create(const ModelShape& shape, std::uint64_t seed) {
  return Model(models::LanguageModel::create(config_of(shape), seed, /*gradients=*/true));
}

Model Model::open(const std::string& folder) { return Model(models::LanguageModel::open(folder)); }

Model Model::open_for_training(const std::string& folder) {
  return Model(models::LanguageModel::open_for_training(folder));
}

ModelShape Model::shape() const {
  const auto& c = model_->config();
  return {.family = std::string(io::enum_name(c.family)),
          .layers = c.layers,
          .heads = c.heads,
          .width = c.width,
          .context = c.context,
          .vocab = c.vocab,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .ffn = c.ffn,
          .tied = c.tied};
}

std::int64_t Model::parameter_count() const { return model_->parameter_count(); }
Device Model::device() const { return model_->device(); }

std::vector<Model::Parameter> Model::parameters() const {
  std::vector<Parameter> list;
  for (const auto& p : model_->parameters())
    list.push_back({p.name, p.memory, p.gradient ? p.gradient->memory : Tensor()});
  return list;
}

Var Model::loss(Graph& g, const Var& tokens, const Var& targets) const { return model_->loss(g, tokens, targets); }
Var Model::logits(Graph& g, const Var& tokens) const { return model_->logits(g, tokens); }

void Model::save(const std::string& folder, DType dtype) const {
  if (device().is_cuda()) {
    Pool pool(1);
    const Stream stream(device(), pool);
    model_->fetch(stream);
  }
  model_->save(folder, dtype);
}

}  // namespace hpcdl
