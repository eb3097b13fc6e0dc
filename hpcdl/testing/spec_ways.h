#pragma once

#include <memory>

#include "hpcdl/core/ways.h"

namespace hpcdl::testing {

/// The ways that the specs of ops compute with on a GPU: gpu_tests --ways "attention=cudnn"; null: the built-in ones.
std::shared_ptr<const Ways>& ways_of_specs();

}  // namespace hpcdl::testing
