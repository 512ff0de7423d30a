//! Messages, latencies, and the tables they are read from.

use conclave_quorum::NodeSet;
use conclave_quorum::measure::latency::{LatencyError, LatencyMatrix, latency};
use conclave_quorum::measure::messages::{messages, messages_of};
use conclave_quorum::measure::tables::{
    TableError, check_capacities, parse_capacities, parse_domains, parse_down,
};

use crate::families::{Explicit, Threshold};
use crate::{load_of, near};

#[test]
fn messages_follow_the_quorum_size() {
    let plane = load_of(&Explicit::shifts(13, &[0, 1, 3, 9]), None);
    let counts = messages_of(&plane);
    near(counts.quorum_size, 4.0);
    near(counts.maekawa_m, 12.0);
    near(counts.maekawa_m_worst, 24.0);
    near(counts.maekawa_s, 9.0);
    near(counts.maekawa_s_delay, 5.0);
    near(counts.ricart_agrawala, 24.0);
    near(counts.lease_try, 26.0);
    near(counts.lease_release, 13.0);
    near(messages(1, 1.0).central, 3.0);
    assert_eq!(messages(0, 0.0).ricart_agrawala, 0.0);
}

#[test]
fn latency_takes_the_nearest_or_the_balanced_quorum() {
    let majority = Explicit::new(3, [vec![0, 1], vec![0, 2], vec![1, 2]]);
    let text = "client,1,2,3\nhere,1,5,9\nthere,inf,inf,2\n";
    let matrix = LatencyMatrix::parse(text, 3).unwrap();
    let load = load_of(&majority, None);
    let report = latency(&majority, &matrix, &load, 2000, 1).unwrap();
    assert_eq!(report.nearest, vec![5.0, f64::INFINITY]);
    assert_eq!(report.nearest_p50, 5.0);
    assert!(report.nearest_p99.is_infinite());
    assert!(report.balanced_p99.is_infinite());
    // One client alone: two of its three quorums need the far node.
    let one = LatencyMatrix::new(vec!["here".into()], 3, vec![vec![1.0, 5.0, 9.0]]).unwrap();
    let report = latency(&majority, &one, &load, 2000, 1).unwrap();
    assert_eq!((report.balanced_p50, report.balanced_p99), (9.0, 9.0));
    assert_eq!((report.nearest_p50, report.nearest_p99), (5.0, 5.0));
}

#[test]
fn latencies_are_validated() {
    let new = |row: Vec<f64>| LatencyMatrix::new(vec!["a".into()], 2, vec![row]);
    assert!(matches!(
        new(vec![1.0]),
        Err(LatencyError::Width { width: 1, .. })
    ));
    for value in [f64::NAN, -1.0] {
        assert!(matches!(
            new(vec![1.0, value]),
            Err(LatencyError::Time { node: 2, .. })
        ));
    }
    assert!(new(vec![1.0, f64::INFINITY]).is_ok());
    assert!(matches!(
        LatencyMatrix::new(vec![], 2, vec![]),
        Err(LatencyError::NoClients)
    ));
    let rows = LatencyMatrix::new(vec!["a".into()], 2, vec![]);
    assert!(matches!(
        rows,
        Err(LatencyError::Rows {
            clients: 1,
            rows: 0
        })
    ));
    let family = Threshold { nodes: 3, votes: 2 };
    let load = load_of(&family, None);
    let matrix = new(vec![1.0, 1.0]).unwrap();
    let error = latency(&family, &matrix, &load, 10, 1).unwrap_err();
    assert_eq!(error, LatencyError::Nodes { given: 2, nodes: 3 });
}

#[test]
fn tables_are_read() {
    let capacities = "# cores\nnode,capacity\n2, 4 # big\n\n1,1.5\r\n3,2\n";
    assert_eq!(
        parse_capacities(capacities, 3).unwrap(),
        vec![1.5, 4.0, 2.0]
    );
    assert_eq!(parse_down("1,0\n2,1\n", 2).unwrap(), vec![0.0, 1.0]);
    let domains = parse_domains("domain,p,nodes\nrack-a,0.01,1 2\nrack-b,0.5,3\n", 3).unwrap();
    assert_eq!(domains.len(), 2);
    assert_eq!(domains[0].nodes, NodeSet::of(3, [0, 1]));
    assert_eq!(domains[1].down, 0.5);
    assert_eq!(parse_domains("# none\n", 3).unwrap(), vec![]);
    let matrix = LatencyMatrix::parse("paris,1,2.5\nrome,inf,0\n", 2).unwrap();
    assert_eq!(matrix.clients(), ["paris", "rome"]);
    assert_eq!(matrix.ms()[1], vec![f64::INFINITY, 0.0]);
}

#[test]
fn capacity_tables_say_what_is_wrong_and_where() {
    let capacity = |text| parse_capacities(text, 3).unwrap_err().to_string();
    let cases = [
        (
            "1,1\n2,0\n3,1",
            "line 2: expected a positive capacity, found '0'",
        ),
        (
            "1,1\n2,NaN\n3,1",
            "line 2: expected a positive capacity, found 'NaN'",
        ),
        (
            "1,1\n2,inf\n3,1",
            "line 2: expected a positive capacity, found 'inf'",
        ),
        ("1,1\n4,1", "line 2: expected a node from 1 to 3, found '4'"),
        ("0,1", "line 1: expected a node from 1 to 3, found '0'"),
        ("1", "line 1: expected node,capacity, found '1'"),
        ("1,1,1", "line 1: expected node,capacity, found '1,1,1'"),
        (
            "1,1\n#\n1,2",
            "line 3: node 1 is already on line 1: give it one line only",
        ),
        (
            "1,1\n3,1",
            "node 2 has no line: expected one line for each of the nodes 1 to 3",
        ),
        (
            "1,1\nnode,capacity",
            "line 2: expected a node from 1 to 3, found 'node'",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(capacity(text), wanted);
    }
}

#[test]
fn fault_tables_say_what_is_wrong_and_where() {
    let down = parse_down("1,1.5", 1).unwrap_err().to_string();
    assert_eq!(
        down,
        "line 1: expected a probability from 0 to 1, found '1.5'"
    );
    let domain = |text| parse_domains(text, 3).unwrap_err().to_string();
    let cases = [
        (
            "a,0.1",
            "line 1: expected domain,p,nodes such as 'rack-a,0.001,1 2 3', found 'a,0.1'",
        ),
        (
            "a,2,1",
            "line 1: expected a probability from 0 to 1, found '2'",
        ),
        ("a,0.1,9", "line 1: expected a node from 1 to 3, found '9'"),
        (
            "a,0.1,",
            "line 1: expected the domain's nodes apart by spaces, found ''",
        ),
        (
            "a,0.1,1\na,0.1,2",
            "line 2: domain 'a' is already on line 1: give it one line only",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(domain(text), wanted);
    }
}

#[test]
fn latency_tables_say_what_is_wrong_and_where() {
    let latency = |text| LatencyMatrix::parse(text, 2).unwrap_err().to_string();
    let cases = [
        (
            "a,1",
            "line 1: expected a client's name and 2 latencies in ms, found 'a,1'",
        ),
        (
            ",1,2",
            "line 1: expected a client's name and 2 latencies in ms, found ',1,2'",
        ),
        (
            "a,1,-2",
            "line 1: expected a time in ms that is not negative, or inf, found '-2'",
        ),
        (
            "a,1,x",
            "line 1: expected a time in ms that is not negative, or inf, found 'x'",
        ),
        (
            "a,1,2\na,1,2",
            "line 2: client 'a' is already on line 1: give it one line only",
        ),
        (
            "",
            "the latency table has no client: give a line per client",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(latency(text), wanted);
    }
}

#[test]
fn capacities_from_elsewhere_are_checked() {
    assert_eq!(check_capacities(&[1.0, 2.0], 2), Ok(()));
    let short = check_capacities(&[1.0], 2);
    assert_eq!(short, Err(TableError::Length { given: 1, nodes: 2 }));
    let none = check_capacities(&[1.0, 0.0], 2);
    assert!(matches!(none, Err(TableError::Capacity { node: 2, .. })));
}
