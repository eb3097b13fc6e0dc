#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "hpcdl/core/ways.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::testing {

/// The ways that the specs of ops compute with on a GPU: gpu_tests --ways "attention=cudnn"; null: the built-in ones.
std::shared_ptr<const Ways>& ways_of_specs();

/// The reference of a call that a GPU computes by another definition than CPUs do; null: by the same.
using ReferenceOnGpu = std::function<contract::Reference(const Stream& s, std::span<const Spec> in, const void* args)>;
/// By the name of the op, of the few ops that have such calls.
std::map<std::string, ReferenceOnGpu, std::less<>>& references_on_gpu();

}  // namespace hpcdl::testing
