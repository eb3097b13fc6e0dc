#include "hpcdl/program/bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/edit.h"

namespace hpcdl {
namespace {

constexpr std::string_view kMagic = "HPCDLPRG";
// 1 had no roles of slots, 2 costs without units and wire, 3 no edits and numerics, 4 no
// redirected operands.
constexpr std::uint32_t kFormat = 5;

/// FNV-1a.
std::uint64_t hash(std::string_view bytes) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

class Writer {
 public:
  std::string bytes;

  template <class T> void number(T v) {
    static_assert(std::endian::native == std::endian::little);
    char raw[sizeof v];
    std::memcpy(raw, &v, sizeof v);
    bytes.append(raw, sizeof v);
  }
  void count(std::size_t n) { number(static_cast<std::uint32_t>(n)); }
  void text(std::string_view s) { count(s.size()), bytes.append(s); }
  void shape(const Shape& s) {
    number(static_cast<std::uint8_t>(s.rank()));
    for (const auto d : s) number(d);
  }
  void spec(const Spec& s) { number(static_cast<std::uint8_t>(s.dtype)), shape(s.shape); }
};

/// Numbers of the ops of one program, in the order of their first records.
class Ops {
 public:
  explicit Ops(const Program& p) {
    for (const auto& r : p.records)
      if (numbers_.emplace(std::pair(r.op.number(), r.backward), list.size()).second)
        list.emplace_back(r.op, r.backward);
  }
  std::uint32_t operator()(const Record& r) const {
    return static_cast<std::uint32_t>(numbers_.at({r.op.number(), r.backward}));
  }
  std::vector<std::pair<OpName, bool>> list;

 private:
  std::map<std::pair<std::uint16_t, bool>, std::size_t> numbers_;
};

std::string body(const Program& p, bool costs) {
  Writer w;
  w.bytes.append(kMagic);
  w.number(kFormat);
  w.number(static_cast<std::uint8_t>(p.numerics.products));
  for (const bool on : {p.numerics.atomic_sums, p.numerics.row_invariant}) w.number(static_cast<std::uint8_t>(on));
  const Ops ops(p);
  w.count(ops.list.size());
  for (const auto& [name, backward] : ops.list) {
    const auto f = function_of(name, backward);
    w.text(name), w.number(static_cast<std::uint8_t>(backward)), w.number(f.args_bytes), w.number(f.version);
  }
  w.count(p.slots.size());
  for (const auto& s : p.slots) {
    w.spec(s.spec);
    w.number(static_cast<std::uint8_t>(s.kind)), w.number(static_cast<std::uint8_t>(s.role));
    w.text(s.name);
  }
  w.count(p.operands.size());
  for (const auto& o : p.operands) {
    w.number(static_cast<std::int32_t>(o.slot)), w.number(static_cast<std::uint8_t>(o.access));
    if (o.slot < 0) continue;
    w.number(o.offset), w.spec(o.spec), w.shape(o.strides);
  }
  w.count(p.records.size());
  for (const auto& r : p.records) {
    w.number(ops(r)), w.number(r.args), w.number(r.operands), w.number(r.operand_count),
        w.number(static_cast<std::uint8_t>(r.lane));
    w.number(static_cast<std::uint8_t>(r.phase)), w.number(r.scope), w.number(r.added_by);
    if (!costs) continue;
    w.number(static_cast<std::uint8_t>(r.cost.unit));
    for (const double x : {r.cost.operations, r.cost.reads, r.cost.writes, r.cost.updates, r.cost.wire}) w.number(x);
  }
  w.text({reinterpret_cast<const char*>(p.args.data()), p.args.size()});
  w.count(p.bounds.size());
  for (const auto at : p.bounds) w.number(at);
  for (const auto* list : {&p.scopes, &p.autocasts}) {
    w.count(list->size());
    for (const auto& s : *list) w.text(s);
  }
  w.count(p.edits.size());
  for (const auto& [name, before, redirected] : p.edits) {
    w.text(name);
    for (const auto n : {before.slots, before.operands, before.args, before.bounds, before.scopes}) w.number(n);
    w.count(redirected.size());
    for (const auto& r : redirected) w.number(r.operand), w.number(r.slot), w.number(r.offset);
  }
  return std::move(w.bytes);
}

class Reader {
 public:
  Reader(std::string_view bytes, std::string_view from) : bytes_(bytes), from_(from) {}

  template <class... Args> void check(bool ok, fmt::format_string<Args...> text, Args&&... args) const {
    if (!ok) fail("program", "{}: {}", from_, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class T> T number() {
    T v;
    std::memcpy(&v, take(sizeof v).data(), sizeof v);
    return v;
  }
  /// A count of entries, each of at least `least` bytes.
  std::size_t count(std::size_t least) {
    const auto n = number<std::uint32_t>();
    check(n <= bytes_.size() / least, "{} entries do not fit into the {} bytes that are left", n, bytes_.size());
    return n;
  }
  std::string_view text() { return take(count(1)); }
  template <class E> E one_of(E last) {
    const auto v = number<std::uint8_t>();
    check(v <= static_cast<std::uint8_t>(last), "expected a value below {1}, found {0}", v, static_cast<int>(last) + 1);
    return static_cast<E>(v);
  }
  Shape shape(bool strides = false) {
    const auto rank = number<std::uint8_t>();
    check(rank <= Shape::kMaxRank, "a tensor has {} dims", rank);
    Shape s;
    for (int i = 0; i < rank; ++i) {
      s.push_back(number<std::int64_t>());
      check(s[i] >= 0 && s[i] <= kMost, "a {} is {}", strides ? "stride" : "dim", s[i]);
    }
    std::int64_t size = 1;
    for (const auto d : s) {
      if (strides) break;
      check(d == 0 || size <= kMost / d, "a tensor is too large");
      size *= d;
    }
    return s;
  }
  Spec spec() {
    Spec s;
    s.dtype = one_of(static_cast<DType>(kDTypeCount - 1));
    s.shape = shape();
    return s;
  }
  bool done() const { return bytes_.empty(); }
  std::string_view take(std::size_t n) {
    check(n <= bytes_.size(), "it ends early");
    const auto part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }

  static constexpr std::int64_t kMost = std::int64_t{1} << 48;

 private:
  std::string_view bytes_, from_;
};

/// One past the last element that an operand touches.
std::int64_t end_of(const Operand& o, const Reader& in) {
  if (o.spec.size() == 0) return o.offset;
  std::int64_t last = o.offset;
  for (int d = 0; d < o.spec.shape.rank(); ++d) {
    const auto steps = o.spec.shape[d] - 1;
    in.check(steps == 0 || o.strides[d] <= (Reader::kMost - last) / steps, "an operand is too large");
    last += steps * o.strides[d];
  }
  return last + 1;
}

Operand operand(Reader& in, const Program& p) {
  Operand o;
  o.slot = in.number<std::int32_t>();
  o.access = in.one_of(Access::update);
  in.check(o.slot < std::ssize(p.slots), "expected a slot below {1}, found {0}", o.slot, p.slots.size());
  if (o.slot < 0) return o.slot = -1, o;
  o.offset = in.number<std::int64_t>();
  o.spec = in.spec(), o.strides = in.shape(true);
  const auto& slot = p.slots[static_cast<std::size_t>(o.slot)];
  in.check(o.offset >= 0 && o.offset <= Reader::kMost && o.strides.rank() == o.spec.shape.rank() &&
               o.spec.dtype != DType::none && end_of(o, in) * dtype_bytes(o.spec.dtype) <= slot.spec.bytes(),
           "an operand lies outside \"{}\"", slot.name);
  // Strides of the views that the recorder creates: kernels may rely on elements not overlapping.
  std::int64_t least = 1;
  for (int d = o.spec.shape.rank() - 1; d >= 0 && o.spec.size() > 0; --d) {
    in.check(o.strides[d] >= least && (d + 1 < o.spec.shape.rank() || o.strides[d] == 1),
             "an operand of \"{}\" overlaps itself", slot.name);
    least = o.strides[d] * o.spec.shape[d];
  }
  return o;
}

struct KnownOp {
  OpName name;
  bool backward;
  std::uint32_t args_bytes;
};

KnownOp op(Reader& in) {
  const auto name = in.text();
  const bool backward = in.one_of<std::uint8_t>(1) != 0;
  const auto args = in.number<std::uint32_t>(), version = in.number<std::uint32_t>();
  in.check(name.size() < 200, "an op has a name of {} bytes", name.size());
  const auto f = OpName::is_known(name) ? function_of(OpName(name), backward) : OpFunction();
  in.check(f.run != nullptr, "it holds the op \"{}\"{}, which this build does not know", name,
           backward ? " backward" : "");
  in.check(f.version == version && f.args_bytes == args,
           "it holds version {} of the op \"{}\" with {} bytes of arguments, this build has version {} with {}",
           version, name, args, f.version, f.args_bytes);
  return {OpName(name), backward, args};
}

Record record(Reader& in, const std::vector<KnownOp>& ops) {
  Record r;
  const auto which = in.number<std::uint32_t>();
  in.check(which < ops.size(), "expected an op below {1}, found {0}", which, ops.size());
  r.op = ops[which].name, r.backward = ops[which].backward;
  r.args = in.number<std::uint32_t>(), r.operands = in.number<std::uint32_t>();
  r.operand_count = in.number<std::uint32_t>(), r.lane = in.one_of(static_cast<Lane>(kLanes - 1));
  r.phase = in.one_of(Phase::update), r.scope = in.number<std::uint32_t>(), r.added_by = in.number<std::uint8_t>();
  r.cost.unit = in.one_of(Unit::i8);
  for (double* x : {&r.cost.operations, &r.cost.reads, &r.cost.writes, &r.cost.updates, &r.cost.wire})
    *x = in.number<double>();
  return r;
}

AppliedEdit edit(Reader& in) {
  AppliedEdit e{std::string(in.text()), {}, {}};
  auto& b = e.before;
  for (auto* n : {&b.slots, &b.operands, &b.args, &b.bounds, &b.scopes}) *n = in.number<std::uint32_t>();
  e.redirected.resize(in.count(16));
  for (auto& r : e.redirected)
    r.operand = in.number<std::uint32_t>(), r.slot = in.number<std::int32_t>(), r.offset = in.number<std::int64_t>();
  return e;
}

/// One edit is undone: its operands were within the slots that were there.
void check_redirected(const Reader& in, const Program& p) {
  const auto& [name, before, redirected] = p.edits.back();
  for (const auto& [operand, slot, offset] : redirected) {
    in.check(operand < before.operands && p.operands[operand].slot >= 0 && slot >= 0 &&
                 static_cast<std::uint32_t>(slot) < before.slots && offset >= 0 && offset <= Reader::kMost,
             "the edit \"{}\" redirects an operand that does not exist", name);
    Operand o = p.operands[operand];
    o.offset = offset;
    in.check(end_of(o, in) * dtype_bytes(o.spec.dtype) <= p.slots[static_cast<std::size_t>(slot)].spec.bytes(),
             "the edit \"{}\" redirects an operand from outside \"{}\"", name,
             p.slots[static_cast<std::size_t>(slot)].name);
  }
}

/// The program stays within its tables, and its records are such as a recorder writes.
void check_program(const Reader& in, const Program& p) {
  for (const auto& o : p.operands)
    in.check(o.slot < std::ssize(p.slots), "expected a slot below {1}, found {0}", o.slot, p.slots.size());
  for (const auto at : p.bounds) {
    in.check(at % alignof(Bound) == 0 && at + std::uint64_t{sizeof(Bound)} <= p.args.size(),
             "a name is outside the arguments");
    const auto& bound = *reinterpret_cast<const Bound*>(p.args.data() + at);
    in.check(!bound.at && bound.name[sizeof bound.name - 1] == 0, "a name does not end");
  }
  for (std::size_t i = 0; i < p.records.size(); ++i) {
    const auto& r = p.records[i];
    in.check(r.scope < p.scopes.size() && r.added_by <= p.edits.size() &&
                 std::uint64_t{r.operands} + r.operand_count <= p.operands.size() &&
                 r.args + std::uint64_t{function_of(r.op, r.backward).args_bytes} <= p.args.size() && r.args % 16 == 0,
             "record {} has a scope, operands, arguments or an edit that do not exist", i);
  }
  try {
    check_records(p);
  } catch (const Error& e) {
    in.check(false, "{}", e.what());
  }
}

}  // namespace

std::string to_bytes(const Program& p) {
  for (const auto at : p.bounds)
    require(!reinterpret_cast<const Bound*>(p.args.data() + at)->at, "program", "expected a program that is finished");
  Writer w{body(p, true)};
  w.number(hash(w.bytes));
  return std::move(w.bytes);
}

std::uint64_t digest(const Program& p) { return hash(body(p, false)); }

Program program_of(std::string_view bytes, std::string_view from) {
  Reader in(bytes, from);
  in.check(bytes.starts_with(kMagic) && bytes.size() >= kMagic.size() + 12, "it is not a program");
  const auto content = bytes.substr(0, bytes.size() - sizeof(std::uint64_t));
  std::uint64_t sum;
  std::memcpy(&sum, bytes.data() + content.size(), sizeof sum);
  in.check(sum == hash(content), "it is damaged: its checksum does not match");
  in = Reader(content.substr(kMagic.size()), from);
  const auto format = in.number<std::uint32_t>();
  in.check(format == kFormat, "it has format {}, this build reads format {}", format, kFormat);
  Program p;
  p.numerics.products = in.one_of(F32Products::tf32);
  for (bool* on : {&p.numerics.atomic_sums, &p.numerics.row_invariant}) *on = in.one_of<std::uint8_t>(1) != 0;
  std::vector<KnownOp> ops(in.count(13));
  for (auto& o : ops) o = op(in);
  p.slots.resize(in.count(8));
  std::int64_t together = 0;
  for (auto& s : p.slots) {
    s.spec = in.spec(), s.kind = in.one_of(SlotKind::state), s.role = in.one_of(SlotRole::scratch), s.name = in.text();
    in.check((together += s.spec.bytes()) <= Reader::kMost * 4096, "its slots are too large");
  }
  p.operands.resize(in.count(5));
  for (auto& o : p.operands) o = operand(in, p);
  p.records.resize(in.count(64));
  for (auto& r : p.records) r = record(in, ops);
  const auto args = in.text();
  p.args.assign(reinterpret_cast<const std::byte*>(args.data()),
                reinterpret_cast<const std::byte*>(args.data()) + args.size());
  p.bounds.resize(in.count(4));
  for (auto& at : p.bounds) at = in.number<std::uint32_t>();
  for (auto* list : {&p.scopes, &p.autocasts}) {
    list->assign(in.count(4), "");
    for (auto& s : *list) s = in.text();
  }
  p.edits.resize(in.count(28));
  in.check(p.edits.size() <= kMostEdits, "it has {} edits", p.edits.size());
  for (auto& e : p.edits) e = edit(in);
  in.check(in.done(), "there are bytes after its end");
  check_program(in, p);
  for (auto now = p; !now.edits.empty();) {
    const auto& [name, before, redirected] = now.edits.back();
    in.check(before.slots <= now.slots.size() && before.operands <= now.operands.size() &&
                 before.args <= now.args.size() && before.bounds <= now.bounds.size() &&
                 before.scopes <= now.scopes.size(),
             "the edit \"{}\" is of a larger program", name);
    check_redirected(in, now);
    check_program(in, now = strip(std::move(now)));
  }
  return p;
}

}  // namespace hpcdl
