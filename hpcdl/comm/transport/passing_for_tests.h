#pragma once
// For tests: a Transport that forwards every call, as a base for those that change one.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class PassingTransport : public Transport {
 public:
  explicit PassingTransport(std::unique_ptr<Transport> below) : below_(std::move(below)) {}
  std::string_view name() const override { return below_->name(); }
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  int host(int rank) const override { return below_->host(rank); }
  std::string host_name(int rank) const override { return below_->host_name(rank); }
  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    return below_->start_send(to, tag, bytes);
  }
  Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) override {
    return below_->start_receive(from, tag, bytes);
  }
  bool done(Pending& pending) override { return below_->done(pending); }
  void cancel(Pending& pending) override { below_->cancel(pending); }
  void withdraw() override { below_->withdraw(); }
  void check(int rank) override { below_->check(rank); }
  void nap(std::chrono::microseconds at_most) override { below_->nap(at_most); }
  void leave(std::string_view why) noexcept override { below_->leave(why); }
  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                Deadline deadline) override {
    return below_->share(ranks, tag, bytes, deadline);
  }

 private:
  std::unique_ptr<Transport> below_;
};

}  // namespace hpcdl::comm
