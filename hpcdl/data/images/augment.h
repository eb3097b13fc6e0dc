#pragma once
// From a decoded picture to the pixels that a model reads, as f32 or bytes. Random draws are a pure function of
// (seed, epoch, sample): within an epoch an image is always the same, independent of the thread and of its neighbours
// in the batch.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

struct AugmentOptions {
  int height = 0, width = 0;  // size of the result; 0: that of the images of the set
  int crop = 0;       // pads the picture with this many black pixels and crops it at random; 4 is usual for CIFAR
  bool flip = false;  // mirrors left and right, with probability 1/2
  bool random_resized =
      false;  // a random part, 8 to 100 % of the area and 3/4 to 4/3 in shape, resized (Szegedy et al., CVPR 2015)
  double mixup = 0;                      // alpha of Beta(alpha, alpha); 0: none (Zhang et al., "mixup", ICLR 2018)
  bool normalise = true;                 // by a mean and standard deviation; otherwise pixels are in [0, 1]
  std::optional<Normalisation> by = {};  // these values instead of those of the set
};

/// The weight of a sample and its partner in mixup.
struct Mix {
  std::int64_t partner = 0;
  float weight = 1;  // image = weight * image + (1 - weight) * partner's
};

class Augmenter {
 public:
  /// Scratch memory of one thread.
  struct Scratch {
    Picture picture, resized;
    std::vector<float> partner;
  };

  /// The set must outlive this.
  Augmenter(const ImageSet& set, const AugmentOptions& options, std::uint64_t seed);
  int height() const { return height_; }
  int width() const { return width_; }
  std::int64_t pixels() const { return std::int64_t{height_} * width_ * 3; }

  /// Writes (height, width, 3): sample `i` in `epoch`. As bytes: not normalised yet, see table().
  void training(std::int64_t i, std::int64_t epoch, Scratch& scratch, std::span<float> to) const {
    convert(window(i, epoch, scratch), to);
  }
  void training(std::int64_t i, std::int64_t epoch, Scratch& scratch, std::span<std::uint8_t> to) const {
    convert(window(i, epoch, scratch), to);
  }
  /// The result of training(), mixed with that of its partner.
  Mix mixed(std::int64_t i, std::int64_t epoch, Scratch& scratch, std::span<float> to) const;
  /// Without random draws; a picture of another size is resized, and its middle is used.
  void plain(std::int64_t i, Scratch& scratch, std::span<float> to) const { convert(whole(i, scratch), to); }
  void plain(std::int64_t i, Scratch& scratch, std::span<std::uint8_t> to) const { convert(whole(i, scratch), to); }
  /// (256, 3): the value of a byte in each channel, with the same bits as above.
  std::vector<float> table() const;

  /// The partner of `i` in `epoch` and its weight: every sample is a partner once.
  Mix mix(std::int64_t i, std::int64_t epoch) const;

 private:
  /// The part of a picture with its corner at (top, left); parts outside of the picture are black.
  struct Window {
    const Picture* from = nullptr;
    int top = 0, left = 0;
    bool flip = false;
  };
  Window window(std::int64_t i, std::int64_t epoch, Scratch& scratch) const;
  Window whole(std::int64_t i, Scratch& scratch) const;
  void copy_row(const Window& w, int y, std::uint8_t* line) const;
  void normalise(const std::uint8_t* line, float* to) const;
  void convert(const Window& w, std::span<std::uint8_t> to) const;
  void convert(const Window& w, std::span<float> to) const;

  const ImageSet& set_;
  AugmentOptions options_;
  std::uint64_t seed_;
  int height_, width_;
  std::vector<float> scale_, shift_;  // for one row (width, 3), so that the compiler sees a plain loop
};

/// A draw from Beta(alpha, alpha), a pure function of its arguments.
double beta_draw(double alpha, std::uint64_t seed, std::uint64_t stream);

}  // namespace hpcdl::data
