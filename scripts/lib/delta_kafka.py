"""Sends deltas of a folder to a topic of Kafka, which CPU nodes read.

    delta_kafka.push(folder, "kafka-0:9092/deltas")

A message is what delta_push sends to a node. All messages of a version have the same key
and so the same partition. Needs confluent-kafka (pip install confluent-kafka).
"""

from scripts.lib import delta_push, deltas

LONGEST = 64 << 20  # bytes that a node takes
TIMEOUT = 60  # seconds in which a broker must take a message


def read_properties(path):
    """Lines PROPERTY=VALUE of librdkafka's configuration, as nodes read them."""
    properties = {}
    with open(path) as file:
        for line in map(str.strip, file):
            if not line or line.startswith("#"):
                continue
            name, equals, value = line.partition("=")
            if not equals:
                raise deltas.DeltaError(f"{path}: '{line}' is no line PROPERTY=VALUE")
            properties[name.strip()] = value.strip()
    return properties


def split(address):
    brokers, _, topic = address.rpartition("/")
    if not brokers or not topic:
        raise deltas.DeltaError(f"{address}: wanted HOST:PORT[,HOST:PORT…]/TOPIC")
    return brokers, topic


def push(folder, address, after=0, properties=None):
    """Sends the deltas of a deltas.Folder after sequence `after`, in order, and returns
    their number when the brokers have them. Nodes pass over deltas that they have."""
    try:
        import confluent_kafka as kafka
    except ImportError as error:
        raise deltas.DeltaError(
            f"needs confluent-kafka (pip install confluent-kafka): {error}"
        )
    brokers, topic = split(address)
    failed = []
    try:
        producer = kafka.Producer({
            "bootstrap.servers": brokers,
            "enable.idempotence": True,  # keeps the order where it sends again
            "message.max.bytes": LONGEST + (1 << 20),
            "message.timeout.ms": TIMEOUT * 1000,
            "log_level": 0,
            **(properties or {}),
        })
        count = 0
        for sequence, manifest in folder.manifests().items():
            if sequence <= after:
                continue
            text = (folder.path / deltas.name_of(sequence)).read_bytes()
            rows = (folder.path / manifest["rows"]["file"]).read_bytes()
            message = delta_push.request(text, rows)
            if len(message) > LONGEST:
                raise deltas.DeltaError(
                    f"delta {sequence} has {len(message)} bytes; a node takes {LONGEST}"
                )

            def told(error, _, sequence=sequence):
                if error is not None:
                    failed.append(f"{address}: delta {sequence}: {error.str()}")

            key = f"{folder.model}/{folder.version}".encode()
            producer.produce(topic, message, key, on_delivery=told)
            # One at a time: no delta follows a delta that the brokers lack.
            producer.flush()
            if failed:
                raise deltas.DeltaError(failed[0])
            count += 1
    except kafka.KafkaException as error:
        raise deltas.DeltaError(f"{address}: {error.args[0].str()}")
    return count
