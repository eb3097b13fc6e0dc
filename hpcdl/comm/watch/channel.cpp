#include "hpcdl/comm/watch/channel.h"

#include <mutex>
#include <utility>

namespace hpcdl::comm {
namespace {

class ThreadChannel;

struct Hub {
  std::mutex mutex;
  std::vector<ThreadChannel*> ranks;  // null: ended
  std::vector<std::string> hosts;
};

class ThreadChannel final : public Channel {
 public:
  ThreadChannel(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadChannel() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->ranks[static_cast<std::size_t>(rank_)] = nullptr;
    for (auto* other : hub_->ranks)
      if (other && !over_) other->take({rank_, true, "its thread has ended"});
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->hosts.size()); }
  std::string host(int rank) const override { return hub_->hosts[static_cast<std::size_t>(rank)]; }
  void send(int to, std::string_view bytes) override {
    const std::lock_guard lock(hub_->mutex);
    for (auto* other : hub_->ranks)
      if (other && other != this && (to < 0 || other->rank_ == to)) other->take({rank_, false, std::string(bytes)});
  }
  void finish() override {
    const std::lock_guard lock(hub_->mutex);
    over_ = true;
  }
  void listen(OnMessage on_message, OnLost on_lost) override {
    const std::lock_guard lock(hub_->mutex);
    on_message_ = std::move(on_message);
    on_lost_ = std::move(on_lost);
    for (const auto& e : std::exchange(early_, {})) take(e);
  }

 private:
  struct Event {
    int from;
    bool lost;
    std::string text;
  };
  void take(const Event& e) {
    if (!on_message_) early_.push_back(e);
    else if (e.lost) on_lost_(e.from, e.text);
    else on_message_(e.from, e.text);
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  bool over_ = false;
  OnMessage on_message_;
  OnLost on_lost_;
  std::vector<Event> early_;  // came before there was a handler
};

}  // namespace

std::vector<std::unique_ptr<Channel>> thread_channels(int n, std::vector<std::string> hosts) {
  auto hub = std::make_shared<Hub>();
  hub->hosts = std::move(hosts);
  hub->hosts.resize(static_cast<std::size_t>(n), "host0");
  std::vector<std::unique_ptr<Channel>> out;
  for (int r = 0; r < n; ++r) {
    auto channel = std::make_unique<ThreadChannel>(hub, r);
    hub->ranks.push_back(channel.get());
    out.push_back(std::move(channel));
  }
  return out;
}

}  // namespace hpcdl::comm
