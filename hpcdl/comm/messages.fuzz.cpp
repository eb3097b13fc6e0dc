// Parses any bytes as what a stranger sends to a port and as what a rank sends to another: the result is a message or
// an Error, and takes no more memory than the input.

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/comm/bootstrap/handshake.h"
#include "hpcdl/comm/transport/connector.h"
#include "hpcdl/comm/transport/link.h"
#include "hpcdl/comm/watch/messages.h"

namespace {

using namespace hpcdl::comm;

template <class F> void accept_errors(F&& f) {
  try {
    f();
  } catch (const hpcdl::Error&) {}
}

/// Two ends of a connection; one has sent all of `text`.
struct Pair {
  explicit Pair(std::string_view text) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) throw std::runtime_error("no sockets");
    theirs = Socket(fds[0]), mine = Socket(fds[1]);
    std::size_t sent = 0;
    if (!text.empty()) send_some(theirs, std::as_bytes(std::span(text)), sent);
  }
  Socket theirs, mine;
};

void frames(std::string_view text, bool trusted) {
  Pair pair(text);
  Connection c(std::move(pair.mine));
  if (trusted) c.trust();
  std::size_t taken = 0;
  for (bool more = true; more;) {
    c.fill();
    more = false;
    while (auto frame = c.next()) taken += FrameHeader::kBytes + frame->payload.size(), more = true;
  }
  if (taken > text.size()) throw std::logic_error("frames are longer than what was sent");
}

void link(std::string_view text) {
  Pair pair(text);
  Link l(std::move(pair.mine));
  std::vector<std::byte> bytes(16);
  Link::Message m{.tag = 1, .to = bytes.data(), .from = nullptr, .bytes = bytes.size()};
  l.receive(m);
  l.advance();
  if (!m.done) l.take_back(m);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accept_errors([&] { Hello::parse(text); });
  accept_errors([&] { Challenge::parse(text); });
  accept_errors([&] {
    const auto i = Introduction::parse(text);
    if (i.packed() != text) throw std::logic_error("an introduction is packed otherwise");
  });
  accept_errors([&] {
    Unpacker in(text);
    Card::of(in);
  });
  accept_errors([&] { frames(text, false); });
  accept_errors([&] { frames(text, true); });
  accept_errors([&] { link(text); });
  const auto report = unpack_stuck(text).report;
  describe(report.work), describe(report.collective);
  phase_name(report.work.phase);
  return 0;
}
