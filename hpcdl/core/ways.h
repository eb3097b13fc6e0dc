#pragma once
// The ways in which a GPU computes calls of ops that have several: kernels, their tiles, libraries. A table says by
// name which to use, notes say which were used. Streams carry both (stream.h).

#include <any>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hpcdl/stream.h"

namespace hpcdl {

/// The largest size of v's bucket. Sizes of one bucket share a way: up to 16 each size has its own bucket, above that
/// those with the same next number of four leading bits (at most an eighth apart).
constexpr std::int64_t bucket(std::int64_t v) {
  int shift = 0;
  while ((v >> shift) >= 16) ++shift;
  return ((v + (std::int64_t{1} << shift) - 1) >> shift) << shift;
}

/// An op and the properties of a call that determine its ways: sizes in buckets, types, parts of the epilogue.
struct WayKey {
  std::string op;
  std::vector<std::int64_t> fields;
  auto operator<=>(const WayKey&) const = default;
};

std::uint64_t hash_of(std::string_view op, std::span<const std::int64_t> fields);

/// The name of a way in a table. The op looks up its own number for the name once.
class ToldWay {
 public:
  explicit ToldWay(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  /// number_of(name), which is negative if the op has no such way.
  template <class F> int number(F&& number_of) const {
    int n = number_.load(std::memory_order_relaxed);
    if (n == kUnresolved) number_.store(n = number_of(name_), std::memory_order_relaxed);
    return n;
  }

 private:
  static constexpr int kUnresolved = -2;
  std::string name_;
  mutable std::atomic<int> number_ = kUnresolved;
};

/// What a table of ways says, by name.
struct WayNames {
  std::map<WayKey, std::string> calls;
  std::map<std::string, std::string> preferred;  // by op: for every call that this way can compute, before `calls`

  bool empty() const { return calls.empty() && preferred.empty(); }
  bool operator==(const WayNames&) const = default;
};

/// Parses `preferred` from words such as "attention=cudnn conv2d=cudnn 2". Throws UsageError; `where` is the source.
/// Whether ops and names exist is not checked here.
std::map<std::string, std::string> parse_preferred_ways(std::string_view text, std::string_view where);

/// A table that does not change. Looked up at every launch, so without text or lock.
class Ways {
 public:
  explicit Ways(WayNames names);
  const WayNames& names() const { return names_; }
  const ToldWay* of_call(std::string_view op, std::span<const std::int64_t> fields) const {
    if (calls_.empty()) return nullptr;
    const auto it = calls_.find(hash_of(op, fields));
    return it == calls_.end() ? nullptr : &it->second;
  }
  const ToldWay* preferred(std::string_view op) const {
    const auto it = preferred_.find(op);
    return it == preferred_.end() ? nullptr : &it->second;
  }

 private:
  WayNames names_;
  std::unordered_map<std::uint64_t, ToldWay> calls_;
  std::map<std::string, ToldWay, std::less<>> preferred_;
};

/// How calls of one key were computed.
struct WayNote {
  std::string used;            // the name of the way
  bool told = false;           // by a table; otherwise it is the built-in choice
  std::string refused = {};    // what a table says, but cannot be had: no such way, or it cannot compute the call
  std::string call = {};       // in words: "gemm bf16 4096x4096x4096 +bias"
  std::any operands = {};      // a copy of the call, to measure its ways with; empty: there is no choice
  std::set<int> records = {};  // with such a call, as begin_record() said
};

/// May be used by several threads at a time.
class WayNotes {
 public:
  /// Calls that follow belong to this record.
  void begin_record(int record);
  /// The first note of a key stays; later ones add their record.
  void add(const WayKey& key, WayNote note);
  std::map<WayKey, WayNote> all() const;

 private:
  mutable std::mutex mutex_;
  int record_ = -1;
  std::map<WayKey, WayNote> notes_;
};

/// Sets the notes of a stream for its own lifetime.
class WithWayNotes {
 public:
  WithWayNotes(Stream& s, WayNotes& notes) : stream_(s), before_(s.way_notes()) { s.set_way_notes(&notes); }
  ~WithWayNotes() { stream_.set_way_notes(before_); }
  WithWayNotes(const WithWayNotes&) = delete;
  WithWayNotes& operator=(const WithWayNotes&) = delete;

 private:
  Stream& stream_;
  WayNotes* before_;
};

}  // namespace hpcdl
