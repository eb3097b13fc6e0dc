#pragma once
// Language models: made new, or read from a Hugging Face folder.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/graph.h"

namespace hpcdl {

namespace models {
class LanguageModel;
}

/// What a new model looks like. 0: what is usual for its family.
struct ModelShape {
  std::string family = "gpt2";  // or llama, mistral, phi3, qwen2, qwen3, gemma2, gemma3_text
  std::int64_t layers = 6, heads = 6, width = 384, context = 256;
  std::int64_t vocab = 0;  // must be given
  std::int64_t kv_heads = 0, head_dim = 0, ffn = 0;
  bool tied = true;  // the head shares the token embedding
};

class Model {
 public:
  /// New weights, a pure function of (shape, seed). Throws UsageError for a shape that does not fit together.
  static Model create(const ModelShape& shape, std::uint64_t seed);
  /// A Hugging Face folder. Weights are views into the mapped files; they are read when they are first used.
  static Model open(const std::string& folder);
  /// The same folder with weights in f32 memory of its own, and with gradients. Refuses quantised folders.
  static Model open_for_training(const std::string& folder);

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  ModelShape shape() const;
  std::int64_t parameter_count() const;
  Device device() const;

  struct Parameter {
    std::string name;
    Tensor value, gradient;  // on the device of the model; the gradient is absent if it cannot be trained
  };
  std::vector<Parameter> parameters() const;

  /// Records a pass. tokens and targets: (B, T) of i32; a target of -1 does not count. The SUM of the losses, one f32.
  Var loss(Graph& g, const Var& tokens, const Var& targets) const;
  /// (B, T, V) f32.
  Var logits(Graph& g, const Var& tokens) const;

  /// Writes a folder that transformers loads: config.json, and weights of that type as safetensors. Weights on a GPU
  /// are copied to the host first.
  void save(const std::string& folder, DType dtype = DType::f32) const;

  /// The model as the sources of the library know it.
  models::LanguageModel& internal() const { return *model_; }

 private:
  explicit Model(models::LanguageModel model);
  std::unique_ptr<models::LanguageModel> model_;
};

}  // namespace hpcdl
