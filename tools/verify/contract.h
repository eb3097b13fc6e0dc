#pragma once
// The contracts by name, as kernels under test know them (kernel_abi.h); our kernels and those of others are checked by
// the same contracts.

#include "hpcdl/ops/contract.h"

namespace hpcdl::lab::verify {

using contract::Contract;
using contract::Dim;
using contract::Dims;
using contract::Expected;
using contract::Input;
using contract::kAny;
using contract::Pattern;
using contract::Problem;
using contract::Role;
using contract::Values;

std::string_view pattern_name(Pattern p);

/// All contracts, in the order of reports.
const std::vector<Contract>& contracts();
/// Throws UsageError with the nearest name.
const Contract& find_contract(std::string_view name);

}  // namespace hpcdl::lab::verify
