#include "hpcdl/models/trainable.h"

namespace hpcdl::models {

Trainable::~Trainable() = default;
Trainable::Trainable(Trainable&&) noexcept = default;
Trainable& Trainable::operator=(Trainable&&) noexcept = default;

}  // namespace hpcdl::models
