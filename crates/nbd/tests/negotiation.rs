//! Negotiation: every option, every refusal, and the two sides against each other in pieces of any size.

use haversack_nbd::constants as c;
use haversack_nbd::*;
use proptest::prelude::*;

const FEATURES: TransmissionFlags = TransmissionFlags::from_bits(1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7);

#[derive(Default)]
struct Disks {
    lookups: usize,
}

impl Exports for Disks {
    fn names(&mut self) -> Vec<String> {
        vec!["disk1".to_owned(), "disk2".to_owned()]
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        self.lookups += 1;
        let name = if name.is_empty() { "disk1" } else { name };
        ["disk1", "disk2"].contains(&name).then(|| ExportInfo {
            name: name.to_owned(),
            description: format!("this is {name}"),
            size_bytes: 1 << 30,
            read_only: name == "disk2",
            block_size: BlockSize::new(512, 4096, 1 << 20).unwrap(),
            features: FEATURES,
        })
    }
}

/// A server under test, and what it has sent after the greeting.
struct Server {
    negotiation: ServerNegotiation,
    output: Vec<u8>,
}

#[derive(PartialEq, Debug)]
struct Reply {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

impl Server {
    /// A server that has seen the client's flags.
    fn new(policy: TlsPolicy, client_flags: u32) -> Self {
        let mut output = Vec::new();
        let mut server =
            Self { negotiation: ServerNegotiation::new(policy, &mut output), output: Vec::new() };
        assert_eq!(output, b"NBDMAGICIHAVEOPT\0\x03");
        assert!(matches!(server.send(&client_flags.to_be_bytes()), Ok(ServerStep::Continue)));
        server
    }

    fn send(&mut self, bytes: &[u8]) -> Result<ServerStep, ServerError> {
        let mut input = bytes;
        let mut last = Ok(ServerStep::Continue);
        while !input.is_empty() && matches!(last, Ok(ServerStep::Continue)) {
            last = self.negotiation.receive(&mut input, &mut Disks::default(), &mut self.output);
        }
        last
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<ServerStep, ServerError> {
        self.send(&option_bytes(option, data))
    }

    /// The replies to an option after which negotiation goes on.
    fn replies(&mut self, option: u32, data: &[u8]) -> Vec<Reply> {
        self.output.clear();
        let step = self.option(option, data);
        assert!(matches!(step, Ok(ServerStep::Continue)), "{step:?}");
        parse_replies(&self.output)
    }

    /// The kind of the only reply to an option.
    fn answer(&mut self, option: u32, data: &[u8]) -> u32 {
        let replies = self.replies(option, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies[0].kind
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn parse_replies(mut bytes: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(bytes[..8], c::OPTION_REPLY_MAGIC.to_be_bytes());
        let length = number(16) as usize;
        replies.push(Reply { option: number(8), kind: number(12), data: bytes[20..20 + length].to_vec() });
        bytes = &bytes[20 + length..];
    }
    replies
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn info_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

fn transmission(step: Result<ServerStep, ServerError>) -> Negotiated {
    match step {
        Ok(ServerStep::Transmission(negotiated)) => *negotiated,
        other => panic!("{other:?}"),
    }
}

#[test]
fn list_names_the_exports() {
    let mut server = Server::new(TlsPolicy::Off, 3);
    let replies = server.replies(c::OPT_LIST, b"");
    let reply = |kind, data| Reply { option: c::OPT_LIST, kind, data };
    assert_eq!(
        replies,
        [
            reply(c::REP_SERVER, string("disk1")),
            reply(c::REP_SERVER, string("disk2")),
            reply(c::REP_ACK, Vec::new())
        ]
    );
    assert_eq!(server.answer(c::OPT_LIST, b"x"), c::REP_ERR_INVALID);
}

#[test]
fn info_tells_and_go_goes() {
    let mut server = Server::new(TlsPolicy::Off, 3);
    let all = info_data("", &[c::INFO_NAME, c::INFO_DESCRIPTION, c::INFO_BLOCK_SIZE, 99]);
    let replies = server.replies(c::OPT_INFO, &all);
    // HAS_FLAGS joins, and DF leaves where replies are simple.
    let export = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &[0, 0b0110_1101]].concat();
    let sizes = [&[0, 3][..], &512_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(1_u32 << 20).to_be_bytes()];
    let infos: Vec<_> = replies.iter().map(|reply| (reply.kind, reply.data.clone())).collect();
    let expected = [
        (c::REP_INFO, export),
        (c::REP_INFO, b"\0\x01disk1".to_vec()),
        (c::REP_INFO, b"\0\x02this is disk1".to_vec()),
        (c::REP_INFO, sizes.concat()),
        (c::REP_ACK, Vec::new()),
    ];
    assert_eq!(infos, expected);
    assert_eq!(server.replies(c::OPT_INFO, &info_data("disk1", &[])).len(), 3);
    let agreed = transmission(server.option(c::OPT_GO, &all));
    assert_eq!(
        (agreed.export.name.as_str(), agreed.block_size_agreed, agreed.no_zeroes),
        ("disk1", true, true)
    );
    assert!(!agreed.structured_replies && agreed.meta_contexts.is_empty() && !agreed.tls);
    assert_eq!(server.send(b"x").unwrap_err(), ServerError::NegotiationOver);
    assert_eq!(server.negotiation.wanted_bytes(), 0);
}

#[test]
fn malformed_info_is_invalid() {
    let mut server = Server::new(TlsPolicy::Off, 3);
    let good = info_data("disk1", &[c::INFO_NAME]);
    for end in 0..good.len() {
        assert_eq!(server.answer(c::OPT_GO, &good[..end]), c::REP_ERR_INVALID, "{end}");
    }
    let long = info_data(&"x".repeat(4097), &[]);
    let bad = [[&good[..], b"x"].concat(), info_data("a\0b", &[]), b"\0\0\0\x01\xff\0\0".to_vec(), long];
    for data in bad {
        assert_eq!(server.answer(c::OPT_INFO, &data), c::REP_ERR_INVALID);
    }
    assert_eq!(server.answer(c::OPT_GO, &info_data("disk3", &[])), c::REP_ERR_UNKNOWN);
    assert_eq!(server.answer(c::OPT_INFO, &info_data(&"x".repeat(4096), &[])), c::REP_ERR_UNKNOWN);
}

#[test]
fn export_name_starts_or_ends() {
    let mut server = Server::new(TlsPolicy::Off, 3);
    let agreed = transmission(server.option(c::OPT_EXPORT_NAME, b"disk2"));
    assert!(agreed.flags.contains(TransmissionFlags::READ_ONLY) && !agreed.block_size_agreed);
    assert_eq!(server.output.len(), 10);
    let mut padded = Server::new(TlsPolicy::Off, 1);
    transmission(padded.option(c::OPT_EXPORT_NAME, b""));
    assert_eq!(padded.output.len(), 134);
    for name in [&b"disk3"[..], b"\xff", b"disk1\0", &[b'x'; 5000], &[b'x'; 9000]] {
        let mut server = Server::new(TlsPolicy::Off, 3);
        let refused = server.option(c::OPT_EXPORT_NAME, name).unwrap_err();
        assert!(matches!(refused, ServerError::ExportRefused { .. }));
        assert!(server.output.is_empty());
    }
}

#[test]
fn clients_of_the_plain_newstyle_may_only_name_an_export() {
    let mut server = Server::new(TlsPolicy::Off, 0);
    transmission(server.option(c::OPT_EXPORT_NAME, b"disk1"));
    assert_eq!(server.output.len(), 134);
    let mut server = Server::new(TlsPolicy::Off, 0);
    let error = server.option(c::OPT_LIST, b"").unwrap_err();
    assert_eq!(error, ServerError::NotFixedNewstyle { option: c::OPT_LIST });
}

#[test]
fn abort_is_acknowledged() {
    let mut server = Server::new(TlsPolicy::Required, 3);
    assert!(matches!(server.option(c::OPT_ABORT, b"whatever"), Ok(ServerStep::Aborted)));
    assert_eq!(parse_replies(&server.output)[0].kind, c::REP_ACK);
}

#[test]
fn what_is_no_nbd_client_is_dropped() {
    let mut negotiation = ServerNegotiation::new(TlsPolicy::Off, &mut Vec::new());
    let step = negotiation.receive(&mut &b"GET / HTTP/1.1"[..], &mut Disks::default(), &mut Vec::new());
    assert_eq!(step.unwrap_err(), ServerError::ClientFlags { found: 0x4745_5420 });
    let mut server = Server::new(TlsPolicy::Off, 3);
    let error = server.send(&[0; 16]).unwrap_err();
    assert_eq!(error, ServerError::OptionMagic { found: 0 });
}

#[test]
fn long_and_unknown_options_are_refused_and_skipped() {
    let mut server = Server::new(TlsPolicy::Off, 3);
    assert_eq!(server.answer(11, b""), c::REP_ERR_UNSUP);
    assert_eq!(server.answer(4, &[1; 8192]), c::REP_ERR_UNSUP);
    for option in [c::OPT_GO, c::OPT_LIST, 77] {
        assert_eq!(server.answer(option, &vec![7; 8193]), c::REP_ERR_TOO_BIG);
        assert_eq!(server.answer(option, &vec![7; 3_000_000]), c::REP_ERR_TOO_BIG);
    }
    let mut server = Server::new(TlsPolicy::Required, 3);
    assert_eq!(server.answer(77, &vec![7; 9000]), c::REP_ERR_TLS_REQD);
}

#[test]
fn meta_contexts_are_listed_and_chosen() {
    let (list, set) = (c::OPT_LIST_META_CONTEXT, c::OPT_SET_META_CONTEXT);
    let mut server = Server::new(TlsPolicy::Off, 3);
    assert_eq!(server.answer(set, &meta_data("disk1", &["base:allocation"])), c::REP_ERR_INVALID);
    assert_eq!(server.answer(c::OPT_STRUCTURED_REPLY, b"x"), c::REP_ERR_INVALID);
    assert_eq!(server.answer(c::OPT_STRUCTURED_REPLY, b""), c::REP_ACK);
    let mut told = |option, queries: &[&str]| -> Vec<(u32, String)> {
        let replies = server.replies(option, &meta_data("disk1", queries));
        assert_eq!(replies.last().unwrap().kind, c::REP_ACK);
        let context = |reply: &Reply| {
            assert_eq!(reply.kind, c::REP_META_CONTEXT);
            let id = u32::from_be_bytes(reply.data[..4].try_into().unwrap());
            (id, String::from_utf8(reply.data[4..].to_vec()).unwrap())
        };
        replies[..replies.len() - 1].iter().map(context).collect()
    };
    let both = [(0, "base:allocation".to_owned()), (0, "haversack:cache".to_owned())];
    assert_eq!(told(list, &[]), both);
    assert_eq!(told(list, &["base:"]), both[..1]);
    assert_eq!(told(list, &["haversack:", "haversack:cache", "qemu:x", "base:alloc"]), both[1..]);
    assert_eq!(told(set, &[]), []);
    assert_eq!(told(set, &["base:", "haversack:", "other:thing"]), []);
    let chosen = told(set, &["haversack:cache", "base:allocation"]);
    assert_eq!(chosen, [(1, "base:allocation".to_owned()), (2, "haversack:cache".to_owned())]);
    for bad in
        [meta_data("disk1", &["base"]), meta_data("disk1", &["base:"])[..16].to_vec(), b"\0\0".to_vec()]
    {
        assert_eq!(server.answer(list, &bad), c::REP_ERR_INVALID);
    }
    assert_eq!(server.answer(list, &meta_data("disk3", &[])), c::REP_ERR_UNKNOWN);
    let agreed = transmission(server.option(c::OPT_GO, &info_data("", &[])));
    assert_eq!(agreed.meta_contexts, MetaContexts { allocation: true, cache: true });
    assert!(agreed.rules().block_status && agreed.flags.contains(TransmissionFlags::SEND_DF));
}

#[test]
fn contexts_of_another_export_or_a_failed_choice_are_void() {
    for last in [meta_data("disk2", &["base:allocation"]), meta_data("disk1", &["base"])] {
        let mut server = Server::new(TlsPolicy::Off, 3);
        server.answer(c::OPT_STRUCTURED_REPLY, b"");
        server.replies(c::OPT_SET_META_CONTEXT, &meta_data("disk1", &["base:allocation"]));
        server.replies(c::OPT_SET_META_CONTEXT, &last);
        let agreed = transmission(server.option(c::OPT_GO, &info_data("disk1", &[])));
        assert!(agreed.meta_contexts.is_empty());
    }
}

#[test]
fn tls_is_refused_allowed_or_required() {
    let mut off = Server::new(TlsPolicy::Off, 3);
    assert_eq!(off.answer(c::OPT_STARTTLS, b""), c::REP_ERR_POLICY);
    let mut required = Server::new(TlsPolicy::Required, 3);
    for option in [c::OPT_LIST, c::OPT_INFO, c::OPT_GO, c::OPT_STRUCTURED_REPLY, c::OPT_SET_META_CONTEXT, 99]
    {
        assert_eq!(required.answer(option, b""), c::REP_ERR_TLS_REQD);
    }
    assert_eq!(required.answer(c::OPT_STARTTLS, b"x"), c::REP_ERR_INVALID);
    assert!(matches!(required.option(c::OPT_STARTTLS, b""), Ok(ServerStep::StartTls)));
    assert_eq!(required.answer(c::OPT_STARTTLS, b""), c::REP_ERR_INVALID);
    assert!(transmission(required.option(c::OPT_GO, &info_data("disk1", &[]))).tls);
    let refused = Server::new(TlsPolicy::Required, 3).option(c::OPT_EXPORT_NAME, b"disk1").unwrap_err();
    assert!(matches!(refused, ServerError::ExportRefused { reason: "TLS is required", .. }));
}

#[test]
fn nothing_from_before_tls_holds_after_it() {
    let mut server = Server::new(TlsPolicy::Allowed, 3);
    server.answer(c::OPT_STRUCTURED_REPLY, b"");
    server.replies(c::OPT_SET_META_CONTEXT, &meta_data("disk1", &["base:allocation"]));
    assert!(matches!(server.option(c::OPT_STARTTLS, b""), Ok(ServerStep::StartTls)));
    let agreed = transmission(server.option(c::OPT_GO, &info_data("disk1", &[])));
    assert!(!agreed.structured_replies && agreed.meta_contexts.is_empty());
    let mut injected = option_bytes(c::OPT_STARTTLS, b"");
    injected.extend(option_bytes(c::OPT_LIST, b""));
    let error = Server::new(TlsPolicy::Allowed, 3).send(&injected).unwrap_err();
    assert_eq!(error, ServerError::PlainTextAfterStartTls { bytes: 16 });
}

/// What a client makes of a server's bytes.
fn client(policy: TlsPolicy, server: &[u8]) -> (Result<ClientStep, ClientError>, Vec<u8>) {
    let mut negotiation = ClientNegotiation::new("disk1", policy).unwrap();
    let (mut input, mut output) = (server, Vec::new());
    let mut step = Ok(ClientStep::Continue);
    while !input.is_empty() && matches!(step, Ok(ClientStep::Continue)) {
        step = negotiation.receive(&mut input, &mut output);
    }
    (step, output)
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = c::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    [option, kind, data.len() as u32].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn greeted(replies: &[Vec<u8>]) -> Vec<u8> {
    [b"NBDMAGICIHAVEOPT\0\x03".to_vec(), replies.concat()].concat()
}

const EXPORT_INFO: &[u8] = &[0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0x81];

#[test]
fn clients_fall_back_to_what_old_servers_know() {
    let go_unknown = [reply(8, c::REP_ERR_UNSUP, b""), reply(7, c::REP_ERR_UNSUP, b"")].concat();
    let export = [0, 0, 0, 0, 0x40, 0, 0, 0, 0, 5];
    let fixed = [greeted(&[go_unknown]), export.to_vec()].concat();
    let plain = [&b"NBDMAGICIHAVEOPT\0\0"[..], &export, &[0; 124]].concat();
    let plain_without_zeroes = [&b"NBDMAGICIHAVEOPT\0\x02"[..], &export].concat();
    for server in [fixed, plain, plain_without_zeroes] {
        match client(TlsPolicy::Off, &server).0 {
            Ok(ClientStep::Connected(connected)) => {
                assert_eq!((connected.size_bytes, connected.flags.bits()), (1 << 30, 5));
                assert_eq!(connected.block_size, BlockSize::CLIENT_DEFAULT);
                assert!(!connected.structured_replies);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn clients_take_no_df_without_structured_replies() {
    for (answer, flags) in [(c::REP_ACK, 0x81), (c::REP_ERR_POLICY, 0x01)] {
        let replies = [reply(8, answer, b""), reply(7, c::REP_INFO, EXPORT_INFO), reply(7, c::REP_ACK, b"")];
        match client(TlsPolicy::Off, &greeted(&replies)).0 {
            Ok(ClientStep::Connected(connected)) => assert_eq!(connected.flags.bits(), flags),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn clients_say_why_they_give_up() {
    let ok = reply(8, c::REP_ACK, b"");
    let sizes = |minimum: u8| vec![0, 3, 0, 0, 0, minimum, 0, 0, 16, 0, 0, 0, 16, 0];
    let cases = [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian".to_vec(), "address that of an NBD server"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec(), "oldstyle"),
        (greeted(&[vec![0; 20]]), "begins with 0x0000000000000000"),
        (greeted(&[reply(7, c::REP_ACK, b"")]), "reply to option 7, expected one to option 8"),
        (greeted(&[reply(8, c::REP_ACK, b"x")]), "an ACK has no data"),
        (greeted(&[reply(8, c::REP_INFO, b"")]), "does not answer the option"),
        (greeted(&[reply(8, c::REP_ACK, &[0; 8193])]), "8193 bytes"),
        (greeted(&[reply(8, c::REP_ERR_TLS_REQD, b"")]), "requires TLS"),
        (greeted(&[ok.clone(), reply(7, c::REP_ERR_TLS_REQD, b"")]), "requires TLS"),
        (greeted(&[ok.clone(), reply(7, c::REP_ERR_UNKNOWN, b"try disk9")]), "no such export: try disk9"),
        (greeted(&[ok.clone(), reply(7, c::REP_ERR_SHUTDOWN, b"")]), "shutting down"),
        (greeted(&[ok.clone(), reply(7, c::REP_ACK, b"")]), "size and flags did not come"),
        (greeted(&[ok.clone(), reply(7, c::REP_INFO, b"\0")]), "kind of information is missing"),
        (greeted(&[ok.clone(), reply(7, c::REP_INFO, &EXPORT_INFO[..11])]), "12 bytes"),
        (greeted(&[ok.clone(), reply(7, c::REP_INFO, &sizes(1)[..13])]), "14 bytes"),
        (greeted(&[ok, reply(7, c::REP_INFO, &sizes(3))]), "minimum 3"),
    ];
    for (server, expected) in cases {
        let error = client(TlsPolicy::Off, &server).0.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let refused = reply(c::OPT_STARTTLS, c::REP_ERR_POLICY, b"no certificates");
    let (step, output) = client(TlsPolicy::Required, &greeted(std::slice::from_ref(&refused)));
    assert!(step.unwrap_err().to_string().contains("no certificates"));
    assert!(output.ends_with(&option_bytes(c::OPT_ABORT, b"")), "a soft farewell");
    let (step, output) = client(TlsPolicy::Allowed, &greeted(&[refused]));
    assert!(matches!(step, Ok(ClientStep::Continue)));
    assert!(output.ends_with(&option_bytes(c::OPT_STRUCTURED_REPLY, b"")), "goes on without");
    let injected = greeted(&[reply(c::OPT_STARTTLS, c::REP_ACK, b""), reply(8, c::REP_ACK, b"")]);
    let error = client(TlsPolicy::Allowed, &injected).0.unwrap_err();
    assert_eq!(error, ClientError::PlainTextAfterStartTls { bytes: 20 });
    let plain = client(TlsPolicy::Required, b"NBDMAGICIHAVEOPT\0\0");
    assert!(plain.0.unwrap_err().to_string().contains("fixed newstyle"));
    assert_eq!(plain.1, b"", "nothing is said in plain text");
    assert!(ClientNegotiation::new(&"x".repeat(4097), TlsPolicy::Off).is_err());
    assert!(ClientNegotiation::new("a\0b", TlsPolicy::Off).is_err());
    let closed = ClientNegotiation::new("disk1", TlsPolicy::Off).unwrap().closed().to_string();
    assert!(closed.contains("without a greeting") && closed.contains("disk1"));
}

/// Lets the two sides negotiate over a line that delivers `pieces` bytes at a time.
fn negotiate(export: &str, tls: [TlsPolicy; 2], pieces: &[usize]) -> Result<(Negotiated, Connected), String> {
    let mut to_client = Vec::new();
    let mut to_server = Vec::new();
    let mut server = ServerNegotiation::new(tls[0], &mut to_client);
    let mut client = ClientNegotiation::new(export, tls[1]).unwrap();
    let (mut negotiated, mut connected) = (None, None);
    for piece in pieces.iter().cycle() {
        if connected.is_none() {
            let bytes: Vec<u8> = to_client.drain(..to_client.len().min(*piece)).collect();
            let mut input = &bytes[..];
            match client.receive(&mut input, &mut to_server).map_err(|error| error.to_string())? {
                ClientStep::Continue => {}
                ClientStep::StartTls => client.tls_started(&mut to_server),
                ClientStep::Connected(agreed) => connected = Some(agreed),
            }
            to_client.splice(..0, input.iter().copied());
        }
        if negotiated.is_none() {
            let bytes: Vec<u8> = to_server.drain(..to_server.len().min(*piece)).collect();
            let mut input = &bytes[..];
            let step = server.receive(&mut input, &mut Disks::default(), &mut to_client);
            if let ServerStep::Transmission(agreed) = step.map_err(|error| error.to_string())? {
                negotiated = Some(*agreed);
            }
            to_server.splice(..0, input.iter().copied());
        }
        if let (Some(negotiated), Some(connected)) = (&negotiated, connected) {
            assert!(to_client.is_empty() && to_server.is_empty());
            return Ok((negotiated.clone(), connected));
        }
    }
    unreachable!("the pieces repeat for ever")
}

#[test]
fn both_sides_agree_byte_by_byte() {
    let (server, client) = negotiate("disk2", [TlsPolicy::Off; 2], &[1]).unwrap();
    assert!(server.structured_replies && server.block_size_agreed && server.no_zeroes);
    assert_eq!(client.flags, server.flags);
}

proptest! {
    #[test]
    fn both_sides_agree_in_any_pieces(
        export in prop::sample::select(vec!["", "disk1", "disk2", "disk3"]),
        tls in prop::sample::select(vec![TlsPolicy::Off, TlsPolicy::Allowed, TlsPolicy::Required]),
        asks in prop::sample::select(vec![TlsPolicy::Off, TlsPolicy::Allowed, TlsPolicy::Required]),
        pieces in prop::collection::vec(1_usize..60, 1..40),
    ) {
        let off = [tls, asks].contains(&TlsPolicy::Off);
        let clash = off && [tls, asks].contains(&TlsPolicy::Required);
        match negotiate(export, [tls, asks], &pieces) {
            Ok((server, client)) => {
                prop_assert!(!clash && export != "disk3");
                prop_assert_eq!([server.tls, client.tls], [!off; 2]);
                prop_assert_eq!(server.flags, client.flags);
                prop_assert_eq!(server.export.size_bytes, client.size_bytes);
                prop_assert_eq!(server.export.block_size, client.block_size);
                prop_assert_eq!([server.structured_replies, client.structured_replies], [true; 2]);
            }
            Err(error) if clash => prop_assert!(error.contains("TLS"), "{}", error),
            Err(error) => prop_assert!(export == "disk3" && error.contains("no such export"), "{}", error),
        }
    }
}
