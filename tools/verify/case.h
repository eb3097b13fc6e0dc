#pragma once
// One check of one kernel, as plain data: a failing case can be printed, repeated, made smaller, and read by the
// parent of a process that crashed over it.

#include <cstdint>
#include <optional>
#include <string>

#include "tools/verify/contract.h"

namespace hpcdl::lab::verify {

enum class Stage : std::uint8_t { smoke, shapes, stability, determinism, edges, speed };
inline constexpr int kStages = 6;
std::string_view stage_name(Stage s);
/// Throws UsageError.
Stage stage_from_name(std::string_view name);

enum class Check : std::uint8_t {
  plain,         // correct, complete, in bounds, for any earlier contents of the outputs
  guard_pages,   // operands end, then begin, at inaccessible memory
  repeat,        // the same bits in repeated calls, on several threads
  threads,       // correct with any number of threads
  same_address,  // other values at the same address give other results
  interleave,    // calls of other sizes in between change nothing
  in_place,      // if the kernel claims it: output 0 is the memory of input 0
  alias,         // two inputs are the same memory
  time           // not faster than the speed of light
};

struct Case {
  static constexpr int kMaxDims = 4;
  Stage stage = Stage::smoke;
  Check check = Check::plain;
  DType dtype = DType::f32;
  Pattern pattern = Pattern::normal;
  std::int32_t place = 0;  // position of a single special value: first, middle, last element
  std::int32_t variant = 0;
  bool misaligned = false;  // operands are misaligned by one element to a cache line
  std::int32_t n_dims = 0;
  std::int64_t dims[kMaxDims] = {};
  std::uint64_t seed = 0;

  Dims size() const { return Dims(dims, dims + n_dims); }
  void set_size(const Dims& d) {
    n_dims = static_cast<std::int32_t>(d.size());
    for (std::size_t i = 0; i < d.size(); ++i) dims[i] = d[i];
  }
};

/// "F32, rows 3 x cols 17, variant 2, one NaN (last), seed 5".
std::string to_string(const Case& c, const Contract& contract);

/// The result of a case.
struct Outcome {
  bool declined = false;  // the kernel declined this case
  std::string fault;      // empty: correct
};

/// Called after every call of the kernel, with false; with true when other work begins, such as making
/// the inputs of a large case, which can take longer than a kernel may, and with false after it.
using Alive = std::function<void(bool own_work)>;

/// Runs one case in this process. A kernel may crash or hang: see isolate.h. `ceiling`: the shortest possible time
/// in seconds, for Check::time; called again if a kernel seems to be faster, since a busy machine measures its roofs
/// too low.
Outcome run_case(const hpcdl_kernel& kernel, const Contract& contract, const Case& c,
                 const std::function<double(const Problem&, bool again)>& ceiling = {}, const Alive& alive = {});

/// An input that may share memory with the first, because it has its shape and both hold plain data; 0: there is none.
std::size_t twin_of_first(const Problem& problem);

/// The cases of a stage for a kernel with these dtypes and flags.
std::vector<Case> cases_of(Stage stage, const Contract& contract, std::uint32_t dtypes, std::uint32_t flags,
                           std::uint64_t seed);

}  // namespace hpcdl::lab::verify
