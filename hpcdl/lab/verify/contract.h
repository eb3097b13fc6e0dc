#pragma once
// What a kernel of a given name must compute: operands, arguments, a naive double-precision reference with the
// magnitudes that rounding errors may grow from, and the least it must cost. Kernels under test know a contract by its
// name only (kernel_abi.h); ours and anybody else's are held to the same one.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/tensor.h"
#include "hpcdl/lab/verify/kernel_abi.h"
#include "hpcdl/program/cost.h"

namespace hpcdl::lab::verify {

/// What the data of a case looks like. The last three put one such value among normal ones.
enum class Pattern : std::uint8_t {
  normal,
  positive,
  huge,
  tiny,
  denormal,
  offset,
  constant,
  zero,
  mixed,
  nan,
  pos_inf,
  neg_inf
};
std::string_view pattern_name(Pattern p);

/// Where an input's values come from: the pattern; always normal, or uniform in 0.1 .. 1.1; integers in [0, below),
/// with now and then a -1; the contract's `derive`.
enum class Role : std::uint8_t { data, weight, positive, index, index_or_none, derived };

struct Input {
  Spec spec;  // default: absent
  Role role = Role::data;
  std::int64_t below = 0;
};

/// A tensor in double, already rounded to its storage type.
struct Values {
  Spec spec;
  std::vector<double> v;

  explicit operator bool() const { return static_cast<bool>(spec); }
  double operator[](std::int64_t i) const { return v[static_cast<std::size_t>(i)]; }
  double& operator[](std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return spec.size(); }
  std::int64_t dim(int i) const { return spec.shape[i]; }
};

struct Problem {
  std::vector<Input> in;
  std::vector<Spec> out;  // default: not asked for
  std::vector<std::byte> args;

  template <class T> T as() const {
    T t;
    std::memcpy(&t, args.data(), sizeof t);
    return t;
  }
  template <class T> void set_args(const T& t) {
    args.resize(sizeof t);
    std::memcpy(args.data(), &t, sizeof t);
  }
};

/// An element whose value the contract leaves open: what a function gives where its limit and its formula disagree.
inline constexpr double kAny = std::numeric_limits<double>::infinity();

/// One output as the reference has it. For each element: its value; the magnitudes that were summed behind it (rounding
/// errors grow from these, core/tolerance.h); the magnitude that rounding to the storage type happens at.
struct Expected {
  Spec spec;
  std::vector<double> value, scale, stored;

  void set(std::int64_t i, double x, double summed, double rounded) {
    const auto at = static_cast<std::size_t>(i);
    value[at] = x, scale[at] = summed, stored[at] = rounded;
  }
  void set(std::int64_t i, double x, double summed) { set(i, x, summed, std::fabs(x)); }
};

struct Dim {
  std::string_view name;
  std::int64_t least = 1, most = 300;  // in fuzzing; 0 rows are an edge case of their own
};
using Dims = std::vector<std::int64_t>;

struct Contract {
  std::string_view name;
  std::string_view formula;
  std::vector<std::string_view> inputs, outputs;
  std::vector<Dim> dims;
  /// Awkward sizes; the first is the smoke test, the last the largest that correctness is checked at.
  std::vector<Dims> shapes;
  /// An ordinary size with tails everywhere.
  Dims typical;
  /// Where it is timed: a few MiB, so that a useful answer is more than noise.
  Dims timed;
  int variants = 1;  // of arguments and optional operands
  std::function<Problem(const Dims&, DType, int variant)> problem;
  /// Fills input `i` of Role::derived from the ones before it. random(k): uniform in [0, 1).
  std::function<void(std::vector<Values>& in, std::size_t i, const Problem&,
                     const std::function<double(std::int64_t)>& random)>
      derive;
  std::function<void(std::vector<Expected>& out, const std::vector<Values>& in, const Problem&)> reference;
  /// Length of the longest sum behind one result.
  std::function<std::int64_t(const Problem&)> reduction;
  /// The least arithmetic and traffic any implementation needs.
  std::function<Cost(const Problem&)> cost;
  std::vector<Pattern> patterns;  // for numerical stability
  double huge = 1e4;              // the magnitude of Pattern::huge
  /// Results, and each of the terms of a sum, may be flushed to zero below this: functions of exp and products, yes;
  /// copies, no.
  double flush = 0x1p-126;
  /// The input that a single NaN or infinity goes into; -1: any. Where a masked key is multiplied with a weight of 0, a
  /// NaN in it may show or not.
  int special_input = -1;
};

/// All, in the order of reports.
const std::vector<Contract>& contracts();
/// Throws UsageError with the nearest name.
const Contract& find_contract(std::string_view name);

namespace detail {
// Each file of contracts_*.cpp adds its own.
void add_elementwise(std::vector<Contract>&);
void add_rows(std::vector<Contract>&);
void add_norms(std::vector<Contract>&);
void add_matrices(std::vector<Contract>&);
void add_attention(std::vector<Contract>&);
void add_others(std::vector<Contract>&);
void add_training(std::vector<Contract>&);

inline std::vector<Pattern> all_patterns() {
  return {Pattern::positive, Pattern::huge,  Pattern::tiny, Pattern::denormal, Pattern::offset, Pattern::constant,
          Pattern::zero,     Pattern::mixed, Pattern::nan,  Pattern::pos_inf,  Pattern::neg_inf};
}
/// Bytes of all operands.
double traffic(const Problem&);
/// (rows, cols) sizes that hurt: 1, primes, one beyond or short of a vector or tile, no rows, one long row.
std::vector<Dims> row_shapes();
}  // namespace detail

}  // namespace hpcdl::lab::verify
