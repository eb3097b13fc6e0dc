#pragma once
// The communication of ranks that write or read one checkpoint together.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace hpcdl::io {

/// All calls except send and receive are collective; a lost rank causes comm::PeerLost.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The values of all ranks, by rank.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  virtual void send(std::span<const std::byte> bytes, int to) = 0;
  virtual void receive(std::span<std::byte> bytes, int from) = 0;
};

class OneRank final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& mine) override { return {mine}; }
  void send(std::span<const std::byte>, int) override {}
  void receive(std::span<std::byte>, int) override {}
};

/// Runs `part` on every rank, then waits for all. If it threw an Error on some, all throw that of the lowest of
/// those; comm::PeerLost is thrown at once, because the ranks can no longer agree.
void agree(Ranks& ranks, const std::function<void()>& part);

}  // namespace hpcdl::io
