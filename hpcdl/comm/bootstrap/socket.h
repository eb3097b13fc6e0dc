#pragma once
// TCP sockets with deadlines. All are non-blocking, and closed on exec.

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// The name of this host.
std::string host_name();
/// The numeric addresses of this host, those that other hosts can reach first.
std::vector<std::string> own_addresses();

/// Listens at `port` (0: a free one) of `host` (empty: all addresses). Invalid if the port is taken; throws Error for
/// other reasons.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& listening);
/// The numeric addresses of this end of a connection and of the other; empty: there is none.
std::string own_end(const Socket& connected);
std::string other_end(const Socket& connected);
/// Whether other hosts can reach it.
bool is_loopback(const std::string& address);
/// Invalid if no connection waits.
Socket accept_from(const Socket& listening);

/// Tries once, for at most `timeout` and until the deadline. Invalid, with the reason in `why`, if nothing answers
/// there. Numeric addresses are used unchanged; names are resolved.
Socket connect_to(const std::string& host, int port, std::chrono::milliseconds timeout, std::string& why);

/// The same without waiting, to a numeric address. Invalid if that fails at once: `error` is an errno.
Socket begin_connect(const std::string& address, int port, int& error);
/// The result: 0, and the socket is tuned; EINPROGRESS; or another errno.
int end_connect(const Socket& socket);

/// Small messages leave at once; a peer whose host is gone is noticed within about 20 s. A peer on this host is not
/// probed, because the kernel reports that it is gone: with 32,640 connections between 256 ranks of a host, so many
/// probes came at once that the loopback device lost them (net.core.netdev_max_backlog), and with them the
/// connections.
void tune(const Socket& socket);
/// A peer that does not read does not end the connection: with the options of tune() alone, Linux would take a peer
/// whose buffers have been full for 20 s for one that is gone. With this, a peer whose host is gone is noticed only
/// while nothing is being sent to it.
void let_read_late(const Socket& socket);

enum class Io { done, wait, closed };  // closed: the peer has closed, or the connection broke
/// Receives what has arrived, at most `bytes`; `got` is its size.
Io receive_some(const Socket& socket, std::span<std::byte> bytes, std::size_t& got);
Io send_some(const Socket& socket, std::span<const std::byte> bytes, std::size_t& sent);

/// Waits until the socket can be read (or written). False at the deadline.
bool wait_for(const Socket& socket, bool write, Deadline deadline);

/// Milliseconds until the deadline for poll(), rounded up; at least 0.
int milliseconds_until(Deadline deadline);

}  // namespace hpcdl::comm
