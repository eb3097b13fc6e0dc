#pragma once
// Memory of a call: guarded on both sides, poisoned, and watched.

#include <cstddef>
#include <memory>
#include <vector>

#include "tools/verify/case.h"

namespace hpcdl::lab::verify {

enum class Placement : std::uint8_t { aligned, misaligned, ends_at_page, begins_at_page };

/// One operand. Guard zones of an input are NaN in every float type, so that reading them changes the result; those of
/// an output are not, so that a copy of the zone beyond an input is detected, too.
class Block {
 public:
  static constexpr std::size_t kGuard = 256;
  Block() = default;
  Block(std::size_t bytes, std::size_t element, Placement placement, unsigned char guard);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Of the operand and its guard zones.
  const std::byte* begin() const { return begin_; }
  const std::byte* end() const { return end_; }
  /// "before" or "past the end of" the operand, or nullptr if both guards are unchanged.
  const char* broken_guard() const;
  void fill(unsigned char value) const;

 private:
  std::shared_ptr<void> memory_;
  std::byte *begin_ = nullptr, *data_ = nullptr, *end_ = nullptr;  // of the guard zones
  std::size_t bytes_ = 0;
  unsigned char guard_ = 0;
};

/// All elements as stored.
void encode(const Values& v, std::byte* to);
/// v rounded to its storage type.
void round_to_storage(Values& v);

/// Inputs of a case; `salt` selects one of several sets of values of a case.
std::vector<Values> make_inputs(const Contract& contract, const Problem& problem, const Case& c,
                                std::uint64_t salt = 0);

/// Results of the reference.
std::vector<Expected> expect(const Contract& contract, const Problem& problem, const std::vector<Values>& in);

/// Tensors of the ABI.
hpcdl_tensor tensor_of(const Spec& spec, void* data);

}  // namespace hpcdl::lab::verify
