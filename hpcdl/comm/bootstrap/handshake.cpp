#include "hpcdl/comm/bootstrap/handshake.h"

#include <algorithm>
#include <cctype>
#include <cerrno>

namespace hpcdl::comm {

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMagic = 0x4c445048;  // "HPDL"
constexpr auto kPatience = 10s;               // time in which a connection has to prove who it is
constexpr auto kSilence = 3s;  // time in which it has to send hello, which should come with the connection
constexpr auto kTurn = 1s;     // time for which one that has sent hello keeps its place when others come
constexpr auto kFull = 50ms;   // time until a full door looks again
constexpr std::size_t kMostNewcomers = 256;

Digest digest(Unpacker& in) {
  Digest d;
  const auto bytes = in.bytes(d.size());
  std::copy(bytes.begin(), bytes.end(), d.begin());
  return d;
}

Digest draw() {
  const auto bytes = random_bytes(sizeof(Digest));
  Digest d;
  std::copy(bytes.begin(), bytes.end(), d.begin());
  return d;
}

std::string proof_of_listener(const Digest& theirs, const Digest& mine) {
  return std::string("listener").append(text_of(theirs)).append(text_of(mine));
}

std::string proof_of_visitor(const Digest& mine, const Digest& theirs, const Visitor& v) {
  return std::string("visitor")
      .append(text_of(mine))
      .append(text_of(theirs))
      .append((Packer() << v.rank << v.world << v.host).take());
}

/// Makes text from strangers safe to print in messages.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) out += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  return out;
}

std::string secret_problem(bool theirs, bool mine, std::string_view them, std::string_view me) {
  if (theirs && mine) return fmt::format("{} has another secret than {}", them, me);
  return fmt::format("{} has a secret and {} has none", theirs ? them : me, theirs ? me : them);
}

constexpr const char* kRemedy = "give all ranks of a job the same HPCDL_SECRET, or HPCDL_SECRET_FILE";

}  // namespace

std::string Hello::packed() const {
  Packer p;
  p << kMagic << protocol << static_cast<std::uint8_t>(has_secret);
  return p.take().append(text_of(run)).append(text_of(number));
}

Hello Hello::parse(std::string_view text) {
  Unpacker in(text);
  Hello h;
  require(in.number<std::uint32_t>() == kMagic, "dist", "the peer has not introduced itself");
  h.protocol = in.number<std::uint32_t>();
  if (h.protocol != kProtocol) return h;  // the rest may be anything
  h.has_secret = in.number<std::uint8_t>() != 0;
  h.run = digest(in), h.number = digest(in);
  require(in.rest().empty(), "dist", "a hello is too long");
  return h;
}

std::string Challenge::packed() const { return std::string(text_of(number)).append(text_of(proof)); }

Challenge Challenge::parse(std::string_view text) {
  Unpacker in(text);
  Challenge c;
  c.number = digest(in), c.proof = digest(in);
  require(in.rest().empty(), "dist", "a challenge is too long");
  return c;
}

std::string Introduction::packed() const {
  Packer p;
  p << visitor.rank << visitor.world << visitor.host;
  return p.take().append(text_of(proof));
}

Introduction Introduction::parse(std::string_view text) {
  Unpacker in(text);
  Introduction i;
  i.visitor.rank = in.number<std::int32_t>(), i.visitor.world = in.number<std::int32_t>();
  i.visitor.host = in.string(Visitor::kLongest);
  i.proof = digest(in);
  require(in.rest().empty(), "dist", "an introduction is too long");
  return i;
}

Caller::Caller(Socket socket, RunKey key, Visitor self, std::string to)
    : connection_(std::move(socket)),
      key_(std::move(key)),
      self_(std::move(self)),
      to_(std::move(to)),
      number_(draw()) {
  self_.host.resize(std::min(self_.host.size(), Visitor::kLongest));
  connection_.put({FrameKind::hello, 0, Hello{kProtocol, key_.name(), number_, key_.has_secret()}.packed()});
}

Caller::State Caller::advance() {
  if (state_ != State::under_way) return state_;
  try {
    bool open = connection_.flush();
    while (open && state_ == State::under_way) {
      open = connection_.fill();
      const auto frame = connection_.next();
      if (!frame) break;
      step(*frame);
      open = connection_.flush() && open;
    }
    if (!open && state_ == State::under_way) state_ = words_.empty() ? State::foreign : State::refused;
  } catch (const Error&) {
    state_ = State::foreign;  // some other program
  }
  return state_;
}

void Caller::step(const Frame& frame) {
  if (frame.kind == FrameKind::challenge && !proved_) return prove(Challenge::parse(frame.payload));
  const bool believed = words_.empty() && proved_;
  if (frame.kind == FrameKind::accepted && believed) state_ = State::accepted;
  else if (frame.kind == FrameKind::stop && believed) state_ = State::stopped, words_ = frame.payload;
  else if (frame.kind == FrameKind::refused && !frame.payload.empty())
    state_ = State::refused, words_ = words_.empty() ? printable(frame.payload) : words_;
  else state_ = words_.empty() ? State::foreign : State::refused;
}

void Caller::prove(const Challenge& c) {
  proved_ = true;
  const bool right = same(c.proof, key_.proof(proof_of_listener(number_, c.number)));
  Introduction i{self_, {}};
  if (right) i.proof = key_.proof(proof_of_visitor(number_, c.number, self_));
  else words_ = fmt::format("{} does not have the secret of rank {} on {}: {}", to_, self_.rank, self_.host, kRemedy);
  connection_.put({FrameKind::introduction, 0, i.packed()});
}

Door::Door(Socket listening, RunKey key, std::string name)
    : listening_(std::move(listening)), key_(std::move(key)), name_(std::move(name)) {}

void Door::wait_for(std::vector<pollfd>& list) const {
  if (listening_ && !full_) list.push_back({listening_.fd(), POLLIN, 0});
  for (const auto& n : newcomers_) list.push_back({n.connection->socket().fd(), POLLIN, 0});
}

Deadline Door::next_deadline() const {
  Deadline next = full_ ? Clock::now() + kFull : Deadline::max();
  for (const auto& n : newcomers_) next = std::min(next, n.until);
  return next;
}

void Door::close() {
  newcomers_.clear();
  listening_ = Socket();
}

/// Connections that have sent nothing are dropped first; one that knows this run keeps its place for the time of an
/// answer.
bool Door::make_room() {
  if (newcomers_.size() < kMostNewcomers) return true;
  auto it = std::find_if(newcomers_.begin(), newcomers_.end(), [](const Newcomer& n) { return !n.said_hello; });
  if (it == newcomers_.end() && Clock::now() >= newcomers_.front().came + kTurn) it = newcomers_.begin();
  if (it == newcomers_.end()) return false;
  newcomers_.erase(it);
  return true;
}

void Door::accept_all() {
  full_ = false;
  for (std::size_t i = 0; listening_ && i < 16 * kMostNewcomers; ++i) {  // then other connections have their turn
    full_ = !make_room();
    if (full_) return;
    Socket s = accept_from(listening_);
    if (!s) {
      // No descriptors are left: drop connections that have sent nothing.
      full_ = errno == EMFILE || errno == ENFILE;
      if (full_) std::erase_if(newcomers_, [](const Newcomer& n) { return !n.said_hello; });
      return;
    }
    const auto now = Clock::now();
    Newcomer n{std::make_unique<Connection>(std::move(s)), now, now + kSilence, {}, {}, false};
    Visitor who;
    read(n, who);  // hello has usually arrived by now; it is not a proof yet
    if (n.connection) newcomers_.push_back(std::move(n));
  }
}

std::vector<Door::Guest> Door::open() {
  std::vector<Guest> guests;
  for (auto& n : newcomers_) {
    Visitor who;
    if (read(n, who)) guests.push_back({std::move(n.connection), std::move(who)});
    else if (n.connection && Clock::now() >= n.until) n.connection.reset();
  }
  accept_all();
  std::erase_if(newcomers_, [](const Newcomer& n) { return n.connection == nullptr; });
  return guests;
}

bool Door::read(Newcomer& n, Visitor& who) {
  try {
    const bool open = n.connection->fill();
    const auto frame = open ? n.connection->next() : std::nullopt;  // a connection that was closed again does not count
    if (frame && !n.said_hello) answer_hello(n, *frame);
    else if (frame) {
      require(frame->kind == FrameKind::introduction, "dist", "the peer has not introduced itself");
      auto i = Introduction::parse(frame->payload);
      who = i.visitor;
      if (check(n, i)) return true;
      n.connection.reset();
    }
    if (!open) n.connection.reset();
  } catch (const Error&) {
    n.connection.reset();  // another program
  }
  return false;
}

void Door::answer_hello(Newcomer& n, const Frame& frame) {
  require(frame.kind == FrameKind::hello, "dist", "the peer has not introduced itself");
  n.hello = Hello::parse(frame.payload);
  const bool other_version = n.hello.protocol != kProtocol;
  if (other_version || n.hello.run != key_.name()) {
    if (other_version)
      last_refusal_ = fmt::format(
          "a rank at {} runs another version of hpcdl than {} (protocol {}, not {}): all ranks "
          "have to run the same one",
          other_end(n.connection->socket()), name_, n.hello.protocol, kProtocol);
    Guest guest{std::move(n.connection), {}};
    return refuse(guest,
                  other_version ? last_refusal_ : std::string());  // without an answer: it belongs to another launch
  }
  n.said_hello = true;
  n.until = n.came + kPatience;
  n.number = draw();
  n.connection->put(
      {FrameKind::challenge, 0, Challenge{n.number, key_.proof(proof_of_listener(n.hello.number, n.number))}.packed()});
  if (!n.connection->flush() || n.connection->has_output()) n.connection.reset();
}

bool Door::check(Newcomer& n, const Introduction& i) {
  if (same(i.proof, key_.proof(proof_of_visitor(n.hello.number, n.number, i.visitor)))) return true;
  const auto they = fmt::format("rank {} on {}", i.visitor.rank, printable(i.visitor.host));
  last_refusal_ = fmt::format("{}: {}", secret_problem(n.hello.has_secret, key_.has_secret(), they, name_), kRemedy);
  Guest guest{std::move(n.connection), {}};
  refuse(guest, last_refusal_);
  return false;
}

void Door::accept(Guest& guest) {
  guest.connection->put({FrameKind::accepted, 0, ""});
  guest.connection->flush();
}

void Door::refuse(Guest& guest, const std::string& why, FrameKind kind) {
  guest.connection->put({kind, 0, why.substr(0, Connection::kOfStrangers)});
  guest.connection->flush();
  guest.connection.reset();
}

}  // namespace hpcdl::comm
