#pragma once
// How the watchdogs of all ranks communicate, independently of the messages of collectives.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::comm {

class Store;

class Channel {
 public:
  /// Called from threads of the channel; must not wait.
  using OnMessage = std::function<void(int from, std::string_view bytes)>;
  using OnLost = std::function<void(int rank, const std::string& why)>;

  virtual ~Channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host(int rank) const = 0;
  /// Sends to one rank, or with -1 to all others. Does not wait; nothing happens for a rank that is gone.
  virtual void send(int to, std::string_view bytes) = 0;
  /// The run of this rank is over: it will no longer be reported as lost.
  virtual void finish() = 0;
  /// Null: nothing is called after this has returned.
  virtual void listen(OnMessage on_message, OnLost on_lost) = 0;
};

/// Over the connections that every rank of a launch has to rank 0.
std::unique_ptr<Channel> store_channel(std::shared_ptr<Store> store);

/// Channels of ranks that are threads of this process, by rank. hosts: names; "host0" if missing. A rank whose channel
/// is destroyed is lost to the others.
std::vector<std::unique_ptr<Channel>> thread_channels(int n, std::vector<std::string> hosts = {});

}  // namespace hpcdl::comm
