#include "transport/verbs/verbs_path.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/paths/region_table.h"
#include "transport/verbs/device/wc_status.h"

namespace refract::transport::verbs {
namespace {

// Requests kept free on the express queue pair: credits and probes must get
// through when puts have filled it.
constexpr uint32_t kReservedRequests = 2;

// IBV_MTU_256 is 1, and each further value of the enum doubles the bytes.
uint32_t MtuBytes(ibv_mtu mtu) { return 128u << mtu; }

// The smallest MTU of at least `bytes`, or the largest there is.
ibv_mtu MtuOf(uint32_t bytes) {
  int mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && MtuBytes(static_cast<ibv_mtu>(mtu)) < bytes) {
    ++mtu;
  }
  return static_cast<ibv_mtu>(mtu);
}

SendLane::Options LaneOptions(const CompletionHub::Attached& attached,
                              Lane lane, const LocalAddress& address,
                              const PathOptions& options) {
  const bool express = lane == Lane::kExpress;
  // Credits and probes use the express lane alone, so the bulk lane keeps no
  // requests free. A read sends no bytes of its own, so the bulk lane has no
  // inline data either.
  SendLane::Options result;
  result.opcode = express ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  result.max_requests =
      express ? options.express_requests : options.bulk_requests;
  result.reserved = express ? kReservedRequests : 0;
  result.max_operations = express ? options.max_puts : options.max_gets;
  result.max_message_bytes = address.attributes.max_msg_sz;
  result.max_inline = express ? std::min(options.inline_bytes,
                                         attached.pairs.express->max_inline())
                              : 0;
  result.generation = attached.inbox->generation;
  return result;
}

absl::Status CheckOptions(const PathOptions& options) {
  const auto power_of_two = [](uint32_t x) {
    return x > 0 && (x & (x - 1)) == 0;
  };
  if (options.express_requests <= kReservedRequests ||
      options.bulk_requests < 1 || !power_of_two(options.max_puts) ||
      !power_of_two(options.max_gets) || !power_of_two(options.notify_window) ||
      options.notify_window < 16 || options.max_reads < 1) {
    return absl::InvalidArgumentError("options of a verbs path");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsPath>> VerbsPath::Create(
    const std::shared_ptr<PollGroup>& group, const LocalAddress& address,
    const PathOptions& options) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  if (address.attributes.max_msg_sz == 0) {
    return absl::InvalidArgumentError("a port that sends no messages");
  }
  REFRACT_ASSIGN_OR_RETURN(PollGroup::PathQueues queues,
                           group->Attach(address.device, options));
  const ibv_device_attr& limits = queues.hub->context().device().attributes();
  EndpointDescription own;
  std::memcpy(own.gid.data(), address.gid.gid.raw, own.gid.size());
  own.gid_type = static_cast<uint8_t>(address.gid.type);
  own.lid = address.attributes.lid;
  own.mtu_bytes = MtuBytes(address.attributes.active_mtu);
  own.express = {queues.attached.inbox->queue_pairs[0],
                 group->RandomPacketNumber()};
  own.bulk = {queues.attached.inbox->queue_pairs[1],
              group->RandomPacketNumber()};
  own.max_reads = static_cast<uint32_t>(
      std::clamp<int>(limits.max_qp_rd_atom, 1, options.max_reads));
  own.notify_window = options.notify_window;
  return std::unique_ptr<VerbsPath>(
      new VerbsPath(std::move(queues.hub), std::move(queues.attached), address,
                    group->NumaNodeOf(address.device), options, own));
}

VerbsPath::VerbsPath(std::shared_ptr<CompletionHub> hub,
                     CompletionHub::Attached attached,
                     const LocalAddress& address, int numa_node,
                     const PathOptions& options, const EndpointDescription& own)
    : hub_(std::move(hub)),
      address_(address),
      numa_node_(numa_node),
      options_(options),
      own_(own),
      domain_(std::move(attached.domain)),
      attached_(std::move(attached)),
      express_(attached_.pairs.express.get(),
               LaneOptions(attached_, Lane::kExpress, address, options)),
      bulk_(attached_.pairs.bulk.get(),
            LaneOptions(attached_, Lane::kBulk, address, options)) {
  regions_.reserve(kMaxRegions);
  peer_regions_.reserve(kMaxRegions);
}

// Detach destroys the queue pairs. Afterwards the device touches no memory of
// this path, and the members that follow may unregister and free it.
VerbsPath::~VerbsPath() { hub_->Detach(std::move(attached_), options_); }

PathLimits VerbsPath::limits() const {
  return {options_.max_puts, options_.max_gets, kMaxTransferBytes, kMaxRegions};
}

absl::StatusOr<Region> VerbsPath::CreateRegion(size_t bytes, Access access) {
  REFRACT_RETURN_IF_ERROR(CheckRoomForRegion(regions_.size()));
  REFRACT_ASSIGN_OR_RETURN(auto memory, Mapping::ForDevices(bytes, numa_node_));
  return Register(std::move(memory), access);
}

absl::StatusOr<Region> VerbsPath::Register(
    std::shared_ptr<const Mapping> memory, Access access) {
  OwnRegion own;
  own.access = access;
  // The id is the index in regions_: Export looks regions up by it.
  own.region.id = static_cast<uint32_t>(regions_.size());
  own.region.memory = std::move(memory);
  REFRACT_ASSIGN_OR_RETURN(
      own.registration, domain_->Register(own.region.data(), own.region.size(),
                                          AccessFlags(access)));
  own.local_key = own.registration->local_key();
  regions_.push_back(std::move(own));
  return regions_.back().region;
}

absl::StatusOr<std::string> VerbsPath::Export(const Region& region) {
  if (region.id >= regions_.size() ||
      regions_[region.id].region.memory != region.memory ||
      regions_[region.id].access == Access::kLocal) {
    return absl::InvalidArgumentError("export of a local or foreign region");
  }
  const OwnRegion& own = regions_[region.id];
  RegionDescription description;
  description.endpoint = own_;
  description.id = region.id;
  description.address = reinterpret_cast<uintptr_t>(region.data());
  description.bytes = region.size();
  description.key = own.registration->remote_key();
  description.access = own.access;
  return EncodeRegion(description);
}

absl::StatusOr<RemoteRegion> VerbsPath::Import(absl::string_view descriptor) {
  REFRACT_ASSIGN_OR_RETURN(const RegionDescription region,
                           DecodeRegion(descriptor));
  if (peer_regions_.size() >= kMaxRegions ||
      std::any_of(
          peer_regions_.begin(), peer_regions_.end(),
          [&](const RegionDescription& x) { return x.id == region.id; })) {
    return absl::InvalidArgumentError("too many regions, or the same twice");
  }
  REFRACT_RETURN_IF_ERROR(Connect(region.endpoint));
  if (!(*peer_ == region.endpoint)) {
    return absl::InvalidArgumentError(
        "regions of different peers on one verbs path");
  }
  peer_regions_.push_back(region);
  return RemoteRegion{region.id, region.bytes};
}

absl::Status VerbsPath::Connect(const EndpointDescription& peer) {
  if (peer_.has_value()) return absl::OkStatus();
  absl::Status connected =
      ConnectPair(*attached_.pairs.express, Lane::kExpress, peer);
  if (connected.ok()) {
    connected = ConnectPair(*attached_.pairs.bulk, Lane::kBulk, peer);
  }
  // A path with only one connected queue pair is useless.
  if (!connected.ok()) {
    Break(connected);
    return connected;
  }
  peer_ = peer;
  return absl::OkStatus();
}

absl::Status VerbsPath::ConnectPair(QueuePair& pair, Lane lane,
                                    const EndpointDescription& peer) {
  const bool express = lane == Lane::kExpress;
  // The InfiniBand specification fixes the order RESET, INIT, RTR, RTS. INIT
  // sets the rights of the peer, RTR (ready to receive) names the peer and
  // accepts its packets, RTS (ready to send) lets this side post.
  //
  // The peer gets only the right that it uses on the pair: writes on express,
  // reads on bulk. A region needs the same right as well (AccessFlags).
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = address_.port;
  attributes.qp_access_flags =
      express ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
  int error = pair.Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                          IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return ErrnoStatus(error, "modify_qp to INIT");

  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = MtuOf(std::min(own_.mtu_bytes, peer.mtu_bytes));
  attributes.dest_qp_num = (express ? peer.express : peer.bulk).number;
  attributes.rq_psn = (express ? peer.express : peer.bulk).packet_number;
  // Reads of the peer that this pair answers at the same time; max_rd_atomic
  // below bounds the reads of this side by the same number of the peer.
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(own_.max_reads);
  attributes.min_rnr_timer = options_.receiver_not_ready_timer;
  ibv_ah_attr& way = attributes.ah_attr;
  way.port_num = address_.port;
  way.dlid = peer.lid;
  // Within an InfiniBand subnet the LID is enough, and saves 40 B per packet.
  const bool same_subnet =
      std::memcmp(own_.gid.data(), peer.gid.data(), 8) == 0;
  way.is_global = own_.gid_type != static_cast<uint8_t>(GidType::kInfiniband) ||
                  peer.lid == 0 || !same_subnet;
  std::memcpy(way.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  way.grh.sgid_index = static_cast<uint8_t>(address_.gid.index);
  way.grh.hop_limit = options_.hop_limit;
  error = pair.Modify(attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                      IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    // EINVAL, ETIMEDOUT, ENETUNREACH, …: there is no route from this address to
    // the peer's. Another address may have a route.
    return absl::UnavailableError(absl::StrCat("modify_qp to RTR from ",
                                               Describe(address_), ": ",
                                               std::strerror(error)));
  }

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options_.ack_timeout;
  attributes.retry_cnt = options_.retries;
  attributes.rnr_retry = options_.receiver_not_ready_retries;
  attributes.sq_psn = (express ? own_.express : own_.bulk).packet_number;
  // A device may start fewer reads than it answers.
  const ibv_device_attr& limits = hub_->context().device().attributes();
  attributes.max_rd_atomic = static_cast<uint8_t>(std::clamp<uint32_t>(
      limits.max_qp_init_rd_atom, 1, std::min(own_.max_reads, peer.max_reads)));
  error = pair.Modify(attributes, IBV_QP_STATE | IBV_QP_TIMEOUT |
                                      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return ErrnoStatus(error, "modify_qp to RTS");
  return absl::OkStatus();
}

const VerbsPath::OwnRegion* VerbsPath::Owner(const std::byte* begin,
                                             size_t bytes) const {
  for (const OwnRegion& own : regions_) {
    if (own.region.memory->Contains(begin, bytes)) return &own;
  }
  return nullptr;
}

PostResult VerbsPath::Prepare(SendLane& lane, const RemoteRegion& region,
                              Access access, uint64_t offset,
                              const std::byte* local, size_t bytes,
                              Operation* operation) const {
  if (!status_.ok() || !failing_.ok()) return PostResult::kBroken;
  // The device checks offsets and rights by the remote key as well, but a
  // request that fails there breaks the queue pair for good. These checks
  // refuse the call alone.
  const auto peer = std::find_if(
      peer_regions_.begin(), peer_regions_.end(),
      [&](const RegionDescription& x) { return x.id == region.id; });
  if (peer == peer_regions_.end() || peer->access != access ||
      offset > peer->bytes || bytes > peer->bytes - offset ||
      bytes > kMaxTransferBytes) {
    return PostResult::kInvalid;
  }
  if (bytes > 0) {
    // A request without bytes has no segment, and so needs no local key.
    const OwnRegion* own = Owner(local, bytes);
    if (own == nullptr) return PostResult::kInvalid;
    operation->local_key = own->local_key;
  }
  if (lane.full()) return PostResult::kFull;
  operation->local = local;
  operation->bytes = bytes;
  operation->remote_address = peer->address + offset;
  operation->remote_key = peer->key;
  return PostResult::kPosted;
}

PostResult VerbsPath::PostPut(const RemoteRegion& to, uint64_t offset,
                              absl::Span<const std::byte> source, bool notify,
                              uint32_t imm, uint64_t context) {
  Operation operation;
  const PostResult result = Prepare(express_, to, Access::kRemoteWrite, offset,
                                    source.data(), source.size(), &operation);
  if (result != PostResult::kPosted) return result;
  operation.context = context;
  operation.notify = notify;
  operation.imm = imm;
  // A put without notification waits for the next put_notify, which follows.
  const bool at_once = notify && !express_.has_requests();
  express_.Push(operation);
  if (at_once) PostExpress();
  return PostResult::kPosted;
}

PostResult VerbsPath::Put(const RemoteRegion& to, uint64_t offset,
                          absl::Span<const std::byte> source,
                          uint64_t context) {
  return PostPut(to, offset, source, false, 0, context);
}

PostResult VerbsPath::PutNotify(const RemoteRegion& to, uint64_t offset,
                                absl::Span<const std::byte> source,
                                uint32_t imm, uint64_t context) {
  return PostPut(to, offset, source, true, imm, context);
}

PostResult VerbsPath::Get(const RemoteRegion& from, uint64_t offset,
                          absl::Span<std::byte> destination, uint64_t context) {
  Operation operation;
  const PostResult result =
      Prepare(bulk_, from, Access::kRemoteRead, offset, destination.data(),
              destination.size(), &operation);
  if (result != PostResult::kPosted) return result;
  operation.context = context;
  const bool at_once = !bulk_.has_requests();
  bulk_.Push(operation);
  if (at_once) PostBulk();
  return PostResult::kPosted;
}

void VerbsPath::PostExpress() {
  // The room in the peer's window: its length less the notifications that the
  // peer has not reported as taken. Counters wrap at 2^32; differences do not.
  uint32_t notifications =
      peer_->notify_window - (sent_notes_ - acknowledged_notes_);
  const uint32_t before = notifications;
  const int error = express_.Post(&notifications);
  sent_notes_ += before - notifications;
  OnDevice(error);
}

void VerbsPath::PostBulk() {
  uint32_t none = 0;
  OnDevice(bulk_.Post(&none));
}

void VerbsPath::OnDevice(int error) {
  // The budgets keep queues from filling, so this is a defect of this side or
  // of the device.
  if (error != 0 && failing_.ok()) {
    failing_ = ErrnoStatus(error, "posting to a verbs queue pair");
  }
}

void VerbsPath::ReturnCredits() {
  const uint32_t owed = taken_notes_ - credited_notes_;
  if (owed < options_.notify_window / kCreditsPerWindow) return;
  // A credit carries the count since the start, so a later credit replaces an
  // earlier one. It uses a receive request of the peer beside the window
  // (kCreditsPerWindow).
  const int error = express_.PostCredit(taken_notes_);
  if (error == EAGAIN) return;  // later, when a request has finished
  credited_notes_ = taken_notes_;
  OnDevice(error);
}

size_t VerbsPath::Poll(absl::Span<Completion> out) {
  if (!status_.ok() || !peer_.has_value()) return 0;
  // Operations that wait are posted twice: first, so that the device works
  // while completions are taken, and at the end, because finished requests and
  // new credits have made room.
  const bool may_post = failing_.ok();
  if (may_post && express_.has_waiting()) PostExpress();
  if (may_post && bulk_.has_waiting()) PostBulk();
  size_t count = 0;
  uint32_t acknowledged;
  {
    absl::MutexLock lock(&hub_->mutex());
    Inbox& inbox = *attached_.inbox;
    hub_->Progress(inbox);
    // Completions stay with the path's lanes: `out` takes them in the order
    // puts, gets, notifications, and the rest at the next Poll.
    if (!express_.Finish(inbox.finished[0]) ||
        !bulk_.Finish(inbox.finished[1])) {
      failing_ = absl::InternalError("completion of a request never posted");
    }
    while (count < out.size() && express_.Pop(&out[count].context)) {
      out[count++].kind = Completion::Kind::kPut;
    }
    while (count < out.size() && bulk_.Pop(&out[count].context)) {
      out[count++].kind = Completion::Kind::kGet;
    }
    while (count < out.size() && inbox.has_notes()) {
      out[count++] = {Completion::Kind::kNotify, inbox.TakeNote(), 0};
      ++taken_notes_;
    }
    acknowledged = inbox.peer_consumed;
    probe_due_ |= std::exchange(inbox.probe_due, false);
    // With a full `out`, more may be waiting.
    inbox.news = count == out.size();
    if (inbox.has_failed() && failing_.ok()) failing_ = FailureOf(inbox);
  }
  // The peer's count must lie between its last count and the number sent; the
  // unsigned differences hold after a wrap, too.
  if (acknowledged - acknowledged_notes_ > sent_notes_ - acknowledged_notes_) {
    failing_ = absl::InvalidArgumentError(
        "the peer took more notifications than were sent");
  }
  acknowledged_notes_ = acknowledged;
  if (!failing_.ok()) [[unlikely]] {
    // Notifications that arrived before are still delivered.
    if (count == 0) Break(failing_);
    return count;
  }
  ReturnCredits();
  if (express_.has_waiting()) PostExpress();
  if (bulk_.has_waiting()) PostBulk();
  if (probe_due_) {
    probe_due_ = false;
    // Requests under way serve as a probe.
    if (!express_.has_requests()) OnDevice(express_.PostNothing());
  }
  return count;
}

bool VerbsPath::Arm() {
  if (!status_.ok() || !failing_.ok() || !peer_.has_value()) return false;
  // No Poll follows until the next event, so operations that wait must go to
  // the device now. Operations that do not fit wait for a completion or a
  // credit, and either of the two ends the sleep.
  if (express_.has_waiting()) PostExpress();
  if (bulk_.has_waiting()) PostBulk();
  if (!failing_.ok()) return false;
  absl::MutexLock lock(&hub_->mutex());
  return hub_->Arm(*attached_.inbox,
                   express_.has_requests() || bulk_.has_requests());
}

absl::Status VerbsPath::FailureOf(const Inbox& inbox) const {
  if (!inbox.failed_request.has_value()) return inbox.failure;
  // Independent of the status: the first request that fails may have been under
  // way before, and is flushed or has used up its retries. The query makes
  // system calls under the hub's mutex, but only once per path: Poll asks for
  // the first failure alone.
  const absl::StatusOr<std::vector<PortInfo>> ports =
      hub_->context().device().Ports();
  const bool port_active =
      ports.ok() && address_.port <= ports->size() &&
      (*ports)[address_.port - 1].attributes.state == IBV_PORT_ACTIVE;
  return StatusOfCompletion(
      *inbox.failed_request,
      inbox.failed_lane == Lane::kExpress ? "express" : "bulk", port_active);
}

void VerbsPath::Break(absl::Status why) {
  if (!status_.ok()) return;
  status_ = std::move(why);
  // The peer's requests fail from now on, which tells the peer.
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  for (QueuePair* pair :
       {attached_.pairs.express.get(), attached_.pairs.bulk.get()}) {
    // In states that do not allow this, nothing was ever posted.
    pair->Modify(attributes, IBV_QP_STATE);
  }
}

}  // namespace refract::transport::verbs
