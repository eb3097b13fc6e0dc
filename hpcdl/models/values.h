#pragma once

namespace hpcdl::models {

/// When a model that is trained gets memory for its values, and their numbers.
enum class Values : unsigned char {
  now,
  later,  // by Trainable::fill(), or by divide(): then this process never has more of them than it keeps
};

}  // namespace hpcdl::models
