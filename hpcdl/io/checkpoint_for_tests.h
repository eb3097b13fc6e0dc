#pragma once
// A run whose every byte is a function of its step, so that a test can distinguish a valid checkpoint from a mixed one.

#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {

class ToyRun {
 public:
  explicit ToyRun(std::int64_t step) {
    tensors_.emplace_back(Spec{{33, 17}, DType::f32});
    tensors_.emplace_back(Spec{{64, 8}, DType::bf16});
    tensors_.emplace_back(Spec{{33, 17}, DType::f32});
    go_to(step);
  }

  void go_to(std::int64_t step) {
    step_ = step;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      for (std::int64_t i = 0; i < tensors_[t].buffer.bytes(); ++i) tensors_[t].buffer.data()[i] = byte_at(step, t, i);
  }
  bool is_at(std::int64_t step) const {
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      for (std::int64_t i = 0; i < tensors_[t].tensor.bytes(); ++i)
        if (tensors_[t].buffer.data()[i] != byte_at(step, t, i)) return false;
    return true;
  }

  TrainState state() const {
    return {.step = step_,
            .tokens = step_ * 1024,
            .seed = ~std::uint64_t{0},
            .epoch = step_ / 10,
            .index = step_ % 10,
            .scalars = {{"best loss", 1.0 / (3.0 + static_cast<double>(step_))}}};
  }
  CheckpointContent content() const {
    return {.model = {{"a.weight", tensors_[0].tensor}, {"b.weight", tensors_[1].tensor}},
            .optimizer = {{"a.weight.m", tensors_[2].tensor}},
            .config_toml = "[train]\nsteps = 3\n",
            .extra = [](const fs::path& folder) { write_file_atomic(folder / "config.json", "{}\n"); }};
  }
  std::vector<NamedTensor> model() const {
    return {{"a.weight", tensors_[0].tensor}, {"b.weight", tensors_[1].tensor}};
  }
  std::vector<NamedTensor> optimizer() const { return {{"a.weight.m", tensors_[2].tensor}}; }

 private:
  static std::byte byte_at(std::int64_t step, std::size_t tensor, std::int64_t i) {
    return static_cast<std::byte>(step * 31 + static_cast<std::int64_t>(tensor) * 7 + i * (step + 3) + i / 256);
  }
  std::int64_t step_ = 0;
  std::vector<OwnedTensor> tensors_;
};

}  // namespace hpcdl::io
