#pragma once
// Puts a machine together, edge by edge.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/infer/grammar/char_set.h"
#include "hpcdl/infer/grammar/rules.h"

namespace hpcdl::infer::grammar {

/// How a character is written: as itself, or inside a JSON string, where some need escapes. Of the escapes of JSON only
/// those that are needed are used, in the form that json.dumps of Python writes.
enum class Encoding { utf8, json };

class Builder {
 public:
  Builder() = default;
  Builder(const Builder&) = delete;

  /// `name` is what messages call it. Its start and its end are new states, without edges.
  RuleId rule(std::string name);
  Rule& operator[](RuleId id) { return rules_.rules[id]; }
  StateId state();

  void bytes(StateId from, std::uint8_t first, std::uint8_t last, StateId to);
  void byte(StateId from, char byte, StateId to);
  void call(StateId from, RuleId rule, StateId to);
  void jump(StateId from, StateId to);
  /// These very bytes.
  void literal(StateId from, std::string_view text, StateId to);
  /// One character of the set.
  void chars(StateId from, const CharSet& set, StateId to, Encoding encoding);
  /// `min` to `max` (or kUnbounded) rounds of what `body` builds between two states. With `countable`, for a body in
  /// which it is certain where a round ends, rounds are counted and need no states of their own.
  using Body = std::function<void(StateId from, StateId to)>;
  void repeat(StateId from, int min, int max, bool countable, const Body& body, StateId to);

  std::size_t states() const { return region_of_.size(); }
  /// Named in the error if there are too many states.
  void set_place(std::string place) { place_ = std::move(place); }
  /// The finished, analysed machine.
  std::unique_ptr<const Rules> finish(RuleId root);

 private:
  void add_jump(StateId from, StateId to, JumpKind kind, RegionId region);
  void count_rounds(StateId from, int min, int max, const Body& body, StateId to);
  template <class Edge> struct From {
    StateId from;
    Edge edge;
  };
  std::vector<From<ByteEdge>> bytes_;
  std::vector<From<CallEdge>> calls_;
  std::vector<From<JumpEdge>> jumps_;
  std::vector<RegionId> region_of_;
  Rules rules_;
  RegionId open_ = kNoRegion;  // the region that is being built
  std::string place_;
};

}  // namespace hpcdl::infer::grammar
