#include "hpcdl/parallel/data_parallel.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/gather_pass.h"
#include "hpcdl/parallel/shard_pass.h"
#include "hpcdl/parallel/uses.h"
#include "hpcdl/state/file_part.h"

namespace hpcdl::parallel {

namespace {

/// What programs read of a parameter. Only the copy: then its value is divided, too.
enum class Reads : unsigned char { copy, both, value };

/// Tensors of one unit are treated alike: programs read the same of all, and all or none are summed over the ranks that
/// share layers, so that these ranks divide such tensors in the same way.
std::string unit_of(const nn::Param& p, Reads reads) {
  std::string name(unit_name(p.name));
  if (reads == Reads::both) name += ".both";
  if (reads == Reads::value) name += ".value";
  if (p.partial_gradient) name += ".summed";
  return name;
}

/// One rank has nothing to divide.
DataParallelOptions for_span(DataParallelOptions o) {
  if (o.span == 1) o.zero = 0;
  return o;
}

}  // namespace

DataParallel::DataParallel(comm::Group group, models::Trainable& model, const Program& pass,
                           const DataParallelOptions& options)
    : group_(std::move(group)),
      model_(model),
      options_(for_span(options)),
      span_(divided() ? span_of(group_, options.span > 0 ? options.span : group_.size()) : Span{group_, {}}),
      axis_(group_),
      span_axis_(span_.within) {
  require(options.zero >= 0 && options.zero <= 3, "parallel", "expected a stage of ZeRO from 0 to 3, got {}",
          options.zero);
  require(options.gather_ahead >= 0, "parallel", "expected to gather at least 0 parts of the model ahead, got {}",
          options.gather_ahead);
  const auto divides_experts = [](const StateEntry& e) { return e.param->experts != nullptr; };
  if (std::ranges::any_of(model.parameters(), divides_experts)) {
    require(options.copies == DType::none || options.zero == 0, "parallel",
            "experts that ranks divide have 16-bit copies only with zero = 0, got zero = {}", options.zero);
    experts_ = std::make_unique<ExpertGradients>(options.same_experts, model.state(), pass, options.reduce.buckets);
  }
  require(options.wire_weights == WireCode::none || options.zero == 3, "parallel",
          "values travel as {} only with zero = 3: below it, every rank has its own share of whole values exactly",
          wire_code_name(options.wire_weights));
  plan_layout(pass);
  if (divided()) divide();
  else if (model.state().divided()) model.divide({});
  if (sharded()) divide_frozen();
}

DataParallel::~DataParallel() { model_.forget_gradients(); }

void DataParallel::plan_layout(const Program& pass) {
  const auto parameters = model_.parameters();
  std::map<std::string, std::size_t, std::less<>> numbers;
  std::vector<ReadyGradient> gradients;
  for (std::size_t i = 0; const auto& p : parameters) {
    const auto number = i++;
    require(p.memory.dtype() == DType::f32, "parallel",
            "the gradient of \"{}\" is {}; expected F32, because gradients are summed over ranks in F32", p.name,
            to_string(p.memory.spec()));
    require(numbers.emplace(p.name, number).second, "parallel", "two parameters are called \"{}\"", p.name);
    if (!p.param->experts) gradients.push_back({p.name, p.memory.spec()});
  }
  order_ = in_order_of_completion(pass, std::move(gradients));
  const auto param_of = [&](const ReadyGradient& g) { return parameters[numbers.at(g.name)].param; };
  const auto names = touched_state(pass);
  const auto reads = [&](const ReadyGradient& g) {
    const auto& p = *param_of(g);
    if (options_.copies == DType::none || !p.multiplied) return Reads::value;
    // Files hold the values of images in another order than memory: ranks that keep any values whole keep these.
    return names.contains(p.name) || (p.channels_last.rank() == 4 && !sharded()) ? Reads::both : Reads::copy;
  };
  const auto unit = [&](const ReadyGradient& g) { return unit_of(*param_of(g), reads(g)); };
  if (divided()) {
    std::map<std::string, int> first;
    for (int i = 0; const auto& g : order_) first.try_emplace(unit(g), i++);
    const auto key = [&](const ReadyGradient& g) { return std::pair(reads(g), first.at(unit(g))); };
    std::stable_sort(order_.begin(), order_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  }
  std::vector<std::int64_t> sizes;
  std::vector<UnitTensor> tensors;
  for (const auto& g : order_) {
    sizes.push_back(g.spec.size());
    tensors.push_back({unit(g), g.spec.size(), std::string(unit_name(g.name))});
    index_.push_back(numbers.at(g.name));
    value_names_.push_back(reads(g) == Reads::copy ? "" : g.name);
    copy_names_.push_back(reads(g) == Reads::value ? "" : g.name + ".copy");
  }
  plan_ = divided() ? plan_units(tensors, span_.within.size()) : plan_buckets(sizes, options_.reduce.buckets);
  for (const auto& u : plan_.units) {
    if (sharded() || value_names_[static_cast<std::size_t>(u.begin)].empty()) divided_ = u.offset + u.elements;
    if (!copy_names_[static_cast<std::size_t>(u.begin)].empty()) copied_ = u.offset + u.elements;
  }
}

void DataParallel::divide() const {
  const auto parameters = model_.parameters();
  FlatLayout layout{.places = std::vector<FlatLayout::Place>(parameters.size()),
                    .elements = plan_.elements + (experts_ ? experts_->elements() : 0),
                    .divided = divided_,
                    .copied = copied_,
                    .share_elements = plan_.share_elements(),
                    .share_divided = divided_ / plan_.ranks,
                    .whole_copies = !sharded()};
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const auto size = order_[i].spec.size();
    const int rank = span_.within.rank();
    layout.places[index_[i]] = {plan_.offset[i], plan_.piece(i, size, rank), plan_.piece_offset(i, size, rank),
                                plan_.offset[i] >= divided_};
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].param->experts) {
      const auto at = experts_->offset(i);
      layout.places[i] = {plan_.elements + at, {0, parameters[i].memory.size()}, plan_.share_elements() + at, true};
    }
  model_.divide(std::move(layout));
}

void DataParallel::divide_frozen() {
  std::vector<UnitTensor> tensors;
  for (const auto& e : model_.state().frozen()) {
    std::string owner(unit_name(e.param->name));
    tensors.push_back({owner + ".frozen", e.memory.bytes(), owner});
    frozen_names_.push_back(e.name);
  }
  frozen_plan_ = plan_units(tensors, span_.within.size());
  std::vector<FlatLayout::Place> places;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    places.push_back({frozen_plan_.offset[i], frozen_plan_.piece(i, tensors[i].elements, span_.within.rank()),
                      frozen_plan_.piece_offset(i, tensors[i].elements, span_.within.rank()), false});
  model_.divide_frozen(places, frozen_plan_.share_elements());
}

ExchangeTimes DataParallel::times() const {
  auto sum = exchange_->times();
  const UnitExchange* const others[] = {across_.get(), frozen_exchange_.get(),
                                        experts_ ? experts_->exchange() : nullptr};
  for (const auto* other : others)
    if (other) sum.seconds += other->times().seconds, sum.waited_seconds += other->times().waited_seconds;
  return sum;
}

void DataParallel::place_gradients() {
  const auto device = model_.device();
  require(!device.is_cuda() || (options_.wire_weights == WireCode::none && options_.wire_gradients == WireCode::none),
          "parallel", "values and gradients travel as int8 or int4 only between CPUs");
  const auto of_all = apart() ? plan_.share_elements() : plan_.elements,
             elements = of_all + (experts_ ? experts_->elements() : 0);
  const auto bytes = elements * std::int64_t{sizeof(float)};
  bool some_share = false;
  std::byte* data = nullptr;
  if (!group_.is_described()) {
    const auto& sharing = span_.within;
    if (!device.is_cuda() && bytes > 0) window_ = sharing.share(apart() ? std::int64_t{sizeof(float)} : bytes);
    some_share = sum_over_ranks(sharing, window_ ? 1 : 0) > 0;
    if (apart()) window_.reset();  // it has told whether there can be one
    if (!window_) memory_ = Buffer(bytes, device);
    data = window_ ? window_->block(sharing.local_rank()) : memory_.data();
  }
  auto& block = apart() ? shares_ : block_;
  block = Tensor(data, {{elements}, DType::f32}, device);
  if (experts_)
    experts_->place(Tensor(data ? block.ptr<float>() + of_all : nullptr, {{experts_->elements()}, DType::f32}, device),
                    options_.reduce);
  const auto& within = span_.within;
  exchange_ = std::make_unique<UnitExchange>(within, plan_, options_.reduce, some_share, device);
  if (span_.across.size() > 1)
    across_ =
        std::make_unique<UnitExchange>(span_.across, plan_of_shares(plan_), options_.reduce, false, device, "shares");
  if (!frozen_names_.empty())
    frozen_exchange_ =
        std::make_unique<UnitExchange>(within, frozen_plan_, options_.reduce, some_share, device, "frozen units");
  std::map<std::string, std::size_t, std::less<>> numbers;
  for (std::size_t i = 0; i < order_.size(); ++i) numbers.emplace(order_[i].name, i);
  model_.place_gradients(
      [&, index = std::size_t{0}](const StateEntry& p) mutable {
        const auto number = index++;
        if (p.param->experts) return experts_->at(p, number);
        const auto offset = plan_.offset[numbers.at(p.name)];
        return Tensor(block_.data() ? block_.ptr<float>() + offset : nullptr, p.memory.spec(), device);
      },
      shares_);
}

GradientPlace DataParallel::place() const {
  using Sums = GradientPlace::Sums;
  return {.sums = !divided() ? Sums::whole
                  : apart()  ? Sums::apart
                             : Sums::in_place,
          .block = block_,
          .shares = shares_,
          .across = across_.get(),
          .wire = options_.wire_gradients};
}

Recording DataParallel::reduced(Recording pass) const {
  pass = reduce_pass(std::move(pass), *exchange_, order_, place());
  return experts_ ? experts_->reduced(std::move(pass)) : pass;
}

Recording DataParallel::alone(Recording pass) const {
  if (!apart()) return pass;
  auto here = place();
  here.exchange = false;
  return reduce_pass(std::move(pass), *exchange_, order_, here);
}

Recording DataParallel::gathered(Recording pass) const {
  if (sharded()) {
    std::vector<ShardedBlock> blocks{
        {"values", exchange_.get(), model_.state().value_shares(), value_names_, options_.wire_weights}};
    if (copied_ > 0)
      blocks.push_back({"copies", exchange_.get(), model_.state().copy_shares(), copy_names_, options_.wire_weights});
    if (frozen_exchange_)
      blocks.push_back({"frozen", frozen_exchange_.get(), model_.state().frozen_shares(), frozen_names_});
    return shard_pass(std::move(pass), blocks, options_.gather_ahead);
  }
  std::vector<GatheredBlock> blocks{{"values", model_.state().value_block(), divided_, value_names_}};
  if (copied_ > 0) blocks.push_back({"copies", model_.state().copy_block(), 0, copy_names_});
  return gather_pass(std::move(pass), *exchange_, blocks);
}

void DataParallel::with_whole_values(const std::function<void()>& f) const {
  if (divided_ == 0) return f();
  Pool pool(1);
  const Stream host(pool);
  const OwnedTensor whole({{divided_}, DType::f32}), share({{divided_ / plan_.ranks}, DType::f32});
  std::map<std::string, std::size_t, std::less<>> numbers;
  for (std::size_t i = 0; i < order_.size(); ++i) numbers.emplace(order_[i].name, i);
  for (const auto& p : model_.state().updated()) {
    if (p.param->experts) continue;
    const auto i = numbers.at(p.param->name);
    if (plan_.offset[i] >= divided_) continue;
    const auto at = plan_.piece_offset(i, order_[i].spec.size(), span_.within.rank());
    copy(host, Tensor(share.tensor.ptr<float>() + at, p.host.spec()), p.host);
  }
  for (const auto& u : plan_.units) {
    if (u.offset >= divided_) continue;
    const auto n = u.elements / plan_.ranks;
    span_.within
        .all_gather(host, Tensor(whole.tensor.ptr<float>() + u.offset, {{u.elements}, DType::f32}),
                    View(share.tensor.ptr<float>() + u.offset / plan_.ranks, {{n}, DType::f32}))
        .wait();
  }
  std::vector<OwnedTensor> in_file_order;
  model_.state().lend_whole_values([&](const StateEntry& p) {
    auto* begin = whole.tensor.ptr<float>() + plan_.offset[numbers.at(p.name)];
    if (p.param->channels_last.rank() != 4) return Tensor(begin, p.memory.spec());
    const auto n = p.memory.size();
    const auto& t = in_file_order.emplace_back(Spec{p.param->file_shape(), DType::f32}).tensor;
    copy_common(t, {}, View(begin, {{n}, DType::f32}), file_part(*p.param, {0, n}));
    return t;
  });
  f();
  model_.state().lend_whole_values([](const StateEntry&) { return Tensor(); });
}

/// What every rank counts of the gradient of p, which lies at `place` of the plan. Of an expert, and of what none divides, one
/// rank counts all.
DividedGradient DataParallel::counted(const StateEntry& p, Graph& g, std::size_t place) const {
  DividedGradient d{.mine = g.constant(p.gradient->name, p.gradient->memory), .part = !p.param->part.all()};
  const auto* shared = model_.sharing();
  if (divided() && !p.param->experts) {
    for (int r = 0; r < plan_.ranks; ++r) d.pieces.push_back(plan_.piece(place, order_[place].spec.size(), r));
    return d;
  }
  const int counts = p.param->experts ? p.param->expert_rank : 0;
  auto size = p.memory.size();
  if (p.param->experts) d.part = shared != nullptr, size = p.param->whole().size() / (shared ? shared->size() : 1);
  d.pieces.resize(static_cast<std::size_t>(counts) + 1);
  d.pieces.back() = {0, size};
  if (group_.rank() != counts) d.mine = g.temporary("of another rank", {{0}, DType::f32});
  return d;
}

DividedGradients DataParallel::gradients(Graph& g) const {
  std::vector<std::size_t> place_of(model_.parameters().size());  // by number in the table
  for (std::size_t i = 0; i < index_.size(); ++i) place_of[index_[i]] = i;
  DividedGradients list;
  for (std::size_t n = 0; const auto& p : model_.state().updated()) {
    list.push_back(counted(p, g, place_of[n++]));
  }
  return list;
}

}  // namespace hpcdl::parallel
