#pragma once
// The ranks of a group as io knows them: who writes and reads a checkpoint together.

#include "hpcdl/comm/group.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/io/ranks.h"

namespace hpcdl::parallel {

class IoRanks final : public io::Ranks {
 public:
  explicit IoRanks(comm::Group group) : group_(std::move(group)) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& mine) override;
  void send(std::span<const std::byte> bytes, int to) override;
  void receive(std::span<std::byte> bytes, int from) override;

 private:
  comm::Group group_;
  Pool pool_{1};
  Stream host_{pool_};
};

}  // namespace hpcdl::parallel
