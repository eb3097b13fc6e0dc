#pragma once
// A classifier of images of any family: its parameters, their memory, and its programs. Activations are NHWC.

#include "hpcdl/models/image_config.h"
#include "hpcdl/models/trainable.h"

namespace hpcdl::models {

class ImageModel final : public Trainable {
 public:
  /// New weights, initialised as in torch and torchvision; a pure function of (config, seed).
  static ImageModel create(ImageConfig config, std::optional<std::uint64_t> seed, bool gradients,
                           Values values = Values::now);
  /// Opens a folder that save() wrote, or one with the same names and shapes: torchvision's for ResNet.
  static ImageModel open(const std::filesystem::path& folder, bool gradients = false);

  ImageModel(ImageModel&&) noexcept;
  ImageModel& operator=(ImageModel&&) noexcept;
  ~ImageModel() override;

  const ImageConfig& config() const;
  /// images: (N, H, W, 3) f32; returns (N, classes) f32.
  Var logits(Graph& g, const Var& images, const nn::ForwardOptions& o = {}) const;
  /// targets: (N) i32, -1 ignored. The SUM of the losses, one f32.
  Var loss(Graph& g, const Var& images, const Var& targets, const nn::ForwardOptions& o = {}) const;

  /// images (N, H, W, 3) f32, targets (N) i32; with mixup also mix (N) f32, the weights of the targets, targets_b and
  /// mix_b, those of the partners. Correct answers are counted by the targets.
  std::vector<InputSpec> inputs(std::int64_t batch, std::int64_t length, const nn::ForwardOptions& o) const override;
  PassOutputs pass(Graph& g, std::span<const Var> inputs, const nn::ForwardOptions& o) const override;
  /// Writes config.json and model.safetensors, including running statistics. Updates the values on the host itself on a
  /// CPU; on a GPU call fetch() first.
  void save(const std::filesystem::path& folder, DType dtype = DType::f32) const override;

 private:
  struct Impl;
  explicit ImageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hpcdl::models
